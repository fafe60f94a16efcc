"""What a notebook's locked cells call: grade solution.py once, then answer check by check.

What counts is graded elsewhere (`grader.notebook.autograde`), so nothing here has to withstand a
learner; it has to be right, quick to import, and silent on stderr, which nbgrader scores as 0.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grader import package
from grader.check_list import listed
from grader.notebook.verdicts import Verdicts, grade_file
from grader.report.quantity import points as in_points

DEADLINE_S = 840.0
"""Below `course.CELL_TIMEOUT_S`: the grader ends before the cell does, and says so."""


class NotPassed(Exception):
    """Shown without a traceback: the message says all there is to know."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class Run:
    """One grading of solution.py."""

    def __init__(self, name: str, verdicts: Verdicts) -> None:
        self._points = {check.name: check.points for check in listed(package.find(name))}
        self._verdicts = verdicts

    def score(self, check: str) -> float:
        """Points for one check, a plain number; says what is wrong when some are missing.

        Raises NotPassed when there is nothing to give, or no verdict.
        """
        verdict = self._verdicts.cells[check]
        if not verdict.points and not verdict.passed:
            raise NotPassed(verdict.text)
        if verdict.points is None:
            raise NotPassed("there is no verdict on this check; run the checks again")
        if not verdict.passed:
            print(verdict.text)
        print(f"{in_points(verdict.points)} of {in_points(self._points[check])} points")
        return verdict.points

    def picture(self, check: str | None = None) -> Any:
        """The timeline of the ranks and the bytes of each host; by default where most was sent."""
        from IPython.display import HTML

        from grader.notebook.picture import frame

        return HTML(frame(self._verdicts.result, check))


def run(problem: str, file: str = "solution.py", deadline_s: float = DEADLINE_S) -> Run:
    """Grade `file` with all checks that are on this machine."""
    if os.environ.get("NBGRADER_EXECUTION") == "autograde":
        raise NotPassed(
            "this course does not grade with distlab: its nbgrader_config.py must call "
            "grader.notebook.course.configure(c)"
        )
    if not Path(file).is_file():
        raise NotPassed(f"there is no {file} yet: run the cell with your solution first")
    verdicts = grade_file(package.find(problem), Path(file), deadline_s)
    print(verdicts.summary)
    return Run(problem, verdicts)
