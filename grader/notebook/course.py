"""The settings of an nbgrader course whose notebooks distlab grades."""

from __future__ import annotations

from typing import Any

from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute, SaveAutoGrades

from grader.notebook.autograde import GradeOnHosts, SaveVerdicts
from grader.notebook.release import ClearToStub

CELL_TIMEOUT_S = 900
_INSTEAD = {ClearSolutions: ClearToStub, Execute: GradeOnHosts, SaveAutoGrades: SaveVerdicts}


def configure(c: Any) -> None:
    """Call this in the course's nbgrader_config.py; other notebooks are treated as ever."""
    c.GenerateAssignment.preprocessors = _with_ours(GenerateAssignment, "preprocessors")
    c.Autograde.autograde_preprocessors = _with_ours(Autograde, "autograde_preprocessors")
    c.Execute.timeout = CELL_TIMEOUT_S
    c.ExportApp.plugin_class = "grader.sinks.nbgrader_export.SafeCsvExport"


def _with_ours(converter: type[Any], trait: str) -> list[type[Any]]:
    stock = converter.class_traits()[trait].default()
    return [_INSTEAD.get(one, one) for one in stock]
