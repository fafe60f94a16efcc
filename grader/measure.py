"""Measured figures of a check: kept for the report, held against bounds, repeated until stable."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.foreign_load import crowded, read_load
from grader.ended import Failed, Inconclusive, Partial
from grader.result import Figure
from grader.turns import TimedBesideOthers

RELATIVE_ERROR = 0.03
_FAR = 1.2


@dataclass(frozen=True)
class Sample:
    """Repeated measurements. relative_error: standard error of the mean over the mean."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        return min(self.values)

    @property
    def relative_error(self) -> float:
        if len(self.values) < 2:
            return math.inf
        mean = statistics.fmean(self.values)
        return statistics.stdev(self.values) / math.sqrt(len(self.values)) / mean if mean else 0.0


class Measure:
    """Collects the figures of one check.

    alone: whether no other grading runs meanwhile. brief: a learner's trial, in which a time within
    its bound is not measured again, since a later one could only be longer.
    """

    def __init__(self, alone: bool = True, brief: bool = False) -> None:
        self._alone, self._brief = alone, brief
        self._figures: list[Figure] = []

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(self._figures)

    def rounds(self, number: int) -> int:
        """How often to do what is repeated for its own sake; half as often in a trial."""
        return -(-number // 2) if self._brief else number

    def note(self, name: str, value: float, unit: str = "") -> None:
        """Keep a figure that nothing is decided by."""
        self._figures.append(Figure(name, float(value), unit))

    def at_most(self, name: str, value: float, bound: float, unit: str = "", *, else_: str) -> None:
        """Keep a figure; raise Failed with `else_` when it exceeds `bound`."""
        self._figures.append(Figure(name, float(value), unit, float(bound), "<="))
        if not value <= bound:
            raise Failed(
                f"{name}: {_plain(value)} {unit}, at most {_plain(bound)} {unit} is right. {else_}"
            )

    def at_least(
        self, name: str, value: float, bound: float, unit: str = "", *, else_: str
    ) -> None:
        """Keep a figure; raise Failed with `else_` when it is below `bound`."""
        self._figures.append(Figure(name, float(value), unit, float(bound), ">="))
        if not value >= bound:
            raise Failed(
                f"{name}: {_plain(value)} {unit}, at least {_plain(bound)} {unit} is right. {else_}"
            )

    def banded(
        self, name: str, value: float, *, full: float, passing: float, unit: str = "", else_: str
    ) -> None:
        """Full points up to `full`, half of them up to `passing`, none beyond."""
        self._figures.append(Figure(name, float(value), unit, float(full), "<="))
        if value <= full:
            return
        text = f"{name}: {_plain(value)} {unit}; {_plain(full)} {unit} earns full marks"
        if value <= passing:
            raise Partial(f"{text}, up to {_plain(passing)} {unit} half of them. {else_}", 0.5)
        raise Failed(f"{text}, above {_plain(passing)} {unit} none. {else_}")

    def best_of(
        self, once: Callable[[], float], *, enough: float, least: int = 3, most: int = 9
    ) -> Sample:
        """Call `once` up to `most` times, and no more once the smallest value is `enough`.

        For times that physics bounds from below: noise only adds to them, so the smallest is
        what the submission can do. One that is far above `enough`, time after time, ends the
        calls as well. Raises Inconclusive when that is above `enough` and others
        crowded the machine in all but a few samples.
        """
        self._must_be_alone()
        values: list[float] = []
        quiet = 0
        while len(values) < most:
            before = read_load()
            values.append(once())
            quiet += not crowded(before, read_load())
            sample = Sample(tuple(values))
            if sample.best <= enough and (self._brief or len(values) >= least):
                return sample
            far = sample.best > _FAR * enough
            if quiet >= least and far and sample.relative_error <= RELATIVE_ERROR:
                return sample
        if quiet < least:
            raise Inconclusive(
                "other programs kept this machine's processors busy in "
                f"{most - quiet} of {most} measurements; stop them and run again"
            )
        return sample

    def until_stable(
        self,
        once: Callable[[], float],
        *,
        least: int = 3,
        most: int = 9,
        budget_s: float = 20.0,
        settled: Callable[[Sample], bool] | None = None,
    ) -> Sample:
        """Call `once` until the relative standard error is below 3%.

        settled: an earlier end, for when the verdict no longer depends on more samples. Raises
        Inconclusive when neither comes within `most` calls or `budget_s` seconds.
        """
        self._must_be_alone()
        deadline = time.monotonic() + budget_s
        values: list[float] = []
        while True:
            values.append(once())
            sample = Sample(tuple(values))
            if len(values) >= least:
                if sample.relative_error <= RELATIVE_ERROR or (settled and settled(sample)):
                    return sample
                if len(values) >= most or time.monotonic() > deadline:
                    raise Inconclusive(
                        f"{len(values)} measurements still differ by a relative standard error of "
                        f"{sample.relative_error:.0%}; this machine is too busy for a fair verdict"
                    )

    def _must_be_alone(self) -> None:
        if not self._alone:
            raise TimedBesideOthers


def _plain(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
