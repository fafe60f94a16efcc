"""How a check ends early: each exception carries the outcome and what the learner reads."""

from __future__ import annotations

from grader.outcome import Outcome
from grader.result import Hang


class CheckEnded(Exception):
    """A verdict other than passed."""

    outcome = Outcome.FAILED

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Failed(CheckEnded):
    """The answer is wrong or a counted limit was exceeded."""


class Partial(CheckEnded):
    """Right, but only part of a measured goal was reached. fraction: share of the points."""

    outcome = Outcome.PARTIAL

    def __init__(self, message: str, fraction: float) -> None:
        super().__init__(message)
        self.fraction = min(1.0, max(0.0, fraction))


class RefusedCallSeen(CheckEnded):
    """A forbidden call was made at run time."""

    outcome = Outcome.REFUSED


class TimedOut(CheckEnded):
    """Some ranks gave no answer before the deadline."""

    outcome = Outcome.TIMED_OUT

    def __init__(self, message: str, hang: Hang | None = None) -> None:
        super().__init__(message)
        self.hang = hang


class Crashed(CheckEnded):
    """A rank raised an error or died."""

    outcome = Outcome.CRASHED


class Inconclusive(CheckEnded):
    """Measurements too noisy for a verdict."""

    outcome = Outcome.INCONCLUSIVE
