"""How much of a grading was judged: what the machine could not judge is never a lower score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grader.outcome import Outcome
from grader.result import CheckResult, GradeResult


@dataclass(frozen=True)
class Judged:
    """Points earned, points possible, and how many of these nobody could judge."""

    score: float
    max_score: float
    unjudged: float

    @property
    def nothing(self) -> bool:
        """Whether there is no score at all to speak of."""
        return self.unjudged > 0 and self.unjudged >= self.max_score


def judged(results: Iterable[GradeResult]) -> Judged:
    """Of one grading, or of several together."""
    several = tuple(results)
    return Judged(
        round(sum(result.score for result in several), 6),
        round(sum(result.max_score for result in several), 6),
        round(sum(check.max_points for r in several for check in unjudged_checks(r)), 6),
    )


def unjudged_checks(result: GradeResult) -> tuple[CheckResult, ...]:
    """The checks whose outcome says nothing about the submission."""
    return tuple(check for check in result.checks if not check.outcome.counts_against_learner)


def first_unfulfilled(result: GradeResult) -> CheckResult | None:
    """The check to read first: the first one that did not pass."""
    missed = (c for c in result.checks if c.outcome not in (Outcome.PASSED, Outcome.SKIPPED))
    return next(missed, None)
