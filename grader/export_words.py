"""What sinks say of a grading and of its checks."""

from __future__ import annotations

from collections.abc import Sequence

from grader.judged import judged
from grader.report.plain_text import first_lines, one_line
from grader.report.verdict import counted_outcomes
from grader.result import CheckResult, GradeResult

_MESSAGE_CHARS, _MESSAGE_LINES = 4000, 80
KEPT_BACK = "What this check does is not shown; ask your instructor."


def check_name(results: Sequence[GradeResult], result: GradeResult, check: CheckResult) -> str:
    """A check's title, with its problem where there are several."""
    title = one_line(check.title)
    return f"{result.problem.number:02d}: {title}" if len(results) > 1 else title


def check_words(check: CheckResult) -> str:
    """Outcome, and why."""
    message, cut = first_lines(check.message, _MESSAGE_LINES, _MESSAGE_CHARS)
    said = f"{check.outcome}: {check.outcome.meaning}"
    return f"{said}\n{message}{' […]' if cut else ''}".strip()


def words_for_learner(check: CheckResult) -> str:
    """The same for a platform that shows everything: without what a hidden check saw."""
    return f"{check.outcome}. {KEPT_BACK}" if check.hidden else check_words(check)


def summary(results: Sequence[GradeResult]) -> str:
    """Points, counts of outcomes, and what could not be judged. Says nothing of single checks."""
    points = judged(results)
    lines = [f"{points.score:g} of {points.max_score:g} points."]
    lines += [f"{r.problem.number:02d} {r.problem.title}: {_counts(r)}" for r in results]
    costs = sum(result.hint_cost for result in results)
    if costs:
        lines.append(f"{costs:g} points went for hints.")
    if points.unjudged:
        lines.append(
            f"{points.unjudged:g} points could not be judged, through no fault of the submission: "
            "they are not lost, and another run may judge them."
        )
    return "\n".join(lines)


def _counts(result: GradeResult) -> str:
    return counted_outcomes(result.checks)
