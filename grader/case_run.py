"""One answered case: what the ranks handed in, how long it took, and what the network carried."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.interface import Traffic, Unfit
from grader.first_time import first_time
from grader.rank_files import Array
from grader.turns import TimedBesideOthers


@dataclass(frozen=True)
class CaseRun:
    """One case, answered. outputs[r]: arrays handed in by rank r. counted: see `traffic`, or the
    sentence that says why nothing was counted. alone: whether no other grading ran meanwhile."""

    outputs: tuple[dict[str, Array], ...]
    seconds: float
    counted: tuple[Traffic, ...] | str
    alone: bool = True

    @property
    def elapsed_s(self) -> float:
        """Grader's clock. Raises TimedBesideOthers where others made it longer."""
        if not self.alone:
            raise TimedBesideOthers
        return self.seconds

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What each host's interface carried during the case. Raises Unfit where nobody counts."""
        if isinstance(self.counted, str):
            raise Unfit(self.counted)
        return self.counted


def moved(
    before: tuple[Traffic, ...] | str, after: tuple[Traffic, ...] | str
) -> tuple[Traffic, ...] | str:
    """What was carried between two counts, TCP's repeats left out, or why it was not counted."""
    if isinstance(before, str) or isinstance(after, str):
        return before if isinstance(before, str) else str(after)
    return first_time([b - a for a, b in zip(before, after, strict=True)])
