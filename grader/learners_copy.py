"""A grading as its learner gets it: without what hidden checks did and saw, so that the next class
can be given the same problem."""

from __future__ import annotations

from dataclasses import replace

from grader.export_words import KEPT_BACK
from grader.outcome import Outcome
from grader.result import CheckResult, GradeResult


def learners_copy(result: GradeResult) -> GradeResult:
    """The same points and outcomes; of a hidden check only its title besides."""
    shown = tuple(_title_only(check) if check.hidden else check for check in result.checks)
    return replace(result, checks=shown)


def _title_only(check: CheckResult) -> CheckResult:
    message = "" if check.outcome is Outcome.PASSED else KEPT_BACK
    return replace(check, message=message, about="", figures=(), jobs=())
