"""How a check, and a whole grading, can end; with the words and the exit code of each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """One verdict. The order of the members is the order of precedence, strongest first."""

    REFUSED = "refused"
    UNFIT = "unfit"
    INCONCLUSIVE = "inconclusive"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    FAILED = "failed"
    PARTIAL = "partial"
    SKIPPED = "skipped"
    PASSED = "passed"

    @property
    def meaning(self) -> str:
        """One sentence for the learner."""
        return _MEANINGS[self]

    @property
    def counts_against_learner(self) -> bool:
        """False where the machine, not the submission, is in doubt."""
        return self not in (Outcome.UNFIT, Outcome.INCONCLUSIVE)


_MEANINGS = {
    Outcome.REFUSED: "The submission calls something this problem forbids; nothing was run.",
    Outcome.UNFIT: "This machine could not keep the test fair. No point is lost; run again.",
    Outcome.INCONCLUSIVE: "Too noisy for a verdict. No point is lost; run again.",
    Outcome.TIMED_OUT: "The ranks did not finish in time; the report shows who waits for whom.",
    Outcome.CRASHED: "A rank ended with an error or was killed before it gave a result.",
    Outcome.FAILED: "The result is wrong, or a counted limit was exceeded.",
    Outcome.PARTIAL: "The result is right, and only some of the measured goals were reached.",
    Outcome.SKIPPED: "Not run, because a check that it builds on did not pass.",
    Outcome.PASSED: "Everything this check asks for holds.",
}

EXIT_FULL_MARKS = 0
EXIT_JUDGED = 1
EXIT_USER_MISTAKE = 2
EXIT_UNFIT = 3
EXIT_INCONCLUSIVE = 4
EXIT_INTERRUPTED = 130


def overall(outcomes: Iterable[Outcome]) -> Outcome:
    """The verdict on a grading: the strongest of its checks' outcomes.

    A skipped check never decides: the one it builds on does.
    """
    order = list(Outcome)
    ranked = sorted((o for o in outcomes if o is not Outcome.SKIPPED), key=order.index)
    if not ranked:
        return Outcome.UNFIT
    strongest = ranked[0]
    mixed = any(o is Outcome.PASSED or o is Outcome.PARTIAL for o in ranked)
    return Outcome.PARTIAL if strongest is Outcome.FAILED and mixed else strongest


def exit_code(outcome: Outcome, score: float, max_score: float) -> int:
    """Exit status of `distlab grade`, as README lists them."""
    if outcome is Outcome.UNFIT:
        return EXIT_UNFIT
    if outcome is Outcome.INCONCLUSIVE:
        return EXIT_INCONCLUSIVE
    return EXIT_FULL_MARKS if outcome is Outcome.PASSED and score >= max_score else EXIT_JUDGED
