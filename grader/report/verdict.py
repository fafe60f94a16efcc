"""The verdict on a whole grading, in a sentence."""

from __future__ import annotations

from collections import Counter

from grader.outcome import Outcome
from grader.report.plain_text import one_line
from grader.report.quantity import points
from grader.result import CheckResult, GradeResult


def verdict_sentence(result: GradeResult) -> str:
    if result.outcome is Outcome.PASSED:
        return "Every check passed."
    if result.outcome not in (Outcome.PARTIAL, Outcome.FAILED):
        return result.outcome.meaning
    missed = [c for c in result.checks if c.outcome not in (Outcome.PASSED, Outcome.SKIPPED)]
    if not missed:
        return result.outcome.meaning
    more = f", and {len(missed) - 1} more" if len(missed) > 1 else ""
    return f"Not fulfilled: “{one_line(missed[0].title)}”{more}."


def score_in_words(result: GradeResult) -> str:
    """ "of 100 points"; where hidden checks are not, of those that can be had here."""
    judged_here = " that are judged here" if result.unjudged_points else ""
    return f"of {points(result.max_score)} points{judged_here}"


def what_is_not_judged(result: GradeResult) -> str:
    """A sentence on the points of hidden checks that were not run; empty if there are none."""
    if not result.unjudged_points:
        return ""
    worth = points(result.unjudged_points)
    return f"Hidden checks are worth {worth} more; your instructor runs them."


def counted_outcomes(checks: tuple[CheckResult, ...]) -> str:
    """ "2 passed, 1 failed" """
    counts = Counter(check.outcome for check in checks)
    return ", ".join(f"{counts[o]} {o.value}" for o in reversed(Outcome) if counts[o])
