"""One grading of a file, as what each cell of a notebook earns and says."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from grader.check import run_grading
from grader.check_list import listed
from grader.outcome import EXIT_USER_MISTAKE, Outcome
from grader.package import Problem
from grader.report.hang_words import source_name
from grader.report.quantity import points as in_points
from grader.report.terminal import explained
from grader.result import CheckResult, GradeResult
from grader.result_json import from_json

_WHOLE = "submission"


@dataclass(frozen=True)
class CellVerdict:
    """points: None where the machine, not the submission, is in doubt: a person decides then."""

    points: float | None
    text: str = ""
    passed: bool = False


@dataclass(frozen=True)
class Verdicts:
    """cells: by name of the check. result: None if nothing could be graded."""

    summary: str
    cells: dict[str, CellVerdict]
    result: GradeResult | None = None


def grade_file(problem: Problem, path: Path, deadline_s: float) -> Verdicts:
    """Run `distlab grade` on a file in a process of its own; hints that were taken cost nothing.

    A mistake of the learner's earns no points; trouble of the machine leaves every cell open.
    """
    try:
        found, code = run_grading(problem, path, [], deadline_s)
    except subprocess.TimeoutExpired:
        return _alike(problem, None, f"not graded within {deadline_s:g} s; grade it again")
    if "error" in found:
        said = str(found["error"]).strip().splitlines() or ["the grader ended without a word"]
        sentence = said[-1].removeprefix("distlab: ")
        return _alike(problem, 0.0 if code == EXIT_USER_MISTAKE else None, sentence)
    return of_result(problem, from_json(json.dumps(found)))


def of_result(problem: Problem, result: GradeResult) -> Verdicts:
    """What the cells of `problem` earn by this grading."""
    source = source_name(result.submission)
    by_name = {check.name: check for check in result.checks}
    whole = by_name.get(_WHOLE)
    summary = (
        f"{result.outcome.value.capitalize()}, {in_points(result.score)} of "
        f"{in_points(result.max_score)} points."
    )
    if whole is not None:
        points = 0.0 if whole.outcome.counts_against_learner else None
        return _alike(problem, points, explained(whole, source), summary, result)
    cells = {}
    for name in (check.name for check in listed(problem)):
        check = by_name.get(name)
        if check is None:
            cells[name] = CellVerdict(None, "this check did not run; grade again")
        else:
            cells[name] = _cell(check, result.checks, source)
    return Verdicts(summary, cells, result)


def _cell(check: CheckResult, checks: tuple[CheckResult, ...], source: str) -> CellVerdict:
    if check.outcome is Outcome.PASSED:
        return CellVerdict(_within(check.points, check.max_points), passed=True)
    open_ = not check.outcome.counts_against_learner or _waits_for_doubt(check, checks)
    points = None if open_ else _within(check.points, check.max_points)
    return CellVerdict(points, explained(check, source))


def _waits_for_doubt(check: CheckResult, checks: tuple[CheckResult, ...]) -> bool:
    """Whether it was skipped because of a check on which there is no verdict."""
    doubtful = (c for c in checks if not c.outcome.counts_against_learner)
    return check.outcome is Outcome.SKIPPED and any(
        f"“{c.title}”" in check.message for c in doubtful
    )


def _alike(
    problem: Problem,
    points: float | None,
    text: str,
    summary: str = "",
    result: GradeResult | None = None,
) -> Verdicts:
    words = summary or ("Not graded." if points is None else "Nothing could be graded.")
    cell = CellVerdict(points, text)
    return Verdicts(words, {check.name: cell for check in listed(problem)}, result)


def _within(points: float, most: float) -> float:
    """nbgrader gives full marks for a negative score and refuses one above the maximum."""
    return float(min(max(points, 0.0), most))
