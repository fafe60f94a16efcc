"""A rank's operations laid out on a lane: overlapping ones in rows, tiny ones joined."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from grader.result import JobRecord, RankTrace, Span

KINDS = ("compute", "communication", "wait")
MAX_ROWS = 3


@dataclass(frozen=True)
class Placed:
    """One operation with its row and a definite end."""

    span: Span
    start: float
    end: float
    row: int

    @property
    def unfinished(self) -> bool:
        return self.span.end is None


@dataclass(frozen=True)
class Block:
    """What is drawn as one rectangle: one operation, or several too short to tell apart."""

    placed: tuple[Placed, ...]

    @property
    def row(self) -> int:
        return self.placed[0].row

    @property
    def start(self) -> float:
        return self.placed[0].start

    @property
    def end(self) -> float:
        return max(one.end for one in self.placed)

    @property
    def shares(self) -> dict[str, float]:
        """The part of the block's time that each kind fills; what is missing from 1 was idle."""
        length = max(self.end - self.start, 1e-12)
        found = dict.fromkeys(KINDS, 0.0)
        for one in self.placed:
            found[one.span.kind] = found.get(one.span.kind, 0.0) + (one.end - one.start) / length
        return {kind: share for kind, share in found.items() if share > 0}

    @property
    def unfinished(self) -> bool:
        return any(one.unfinished for one in self.placed)


@dataclass(frozen=True)
class Tally:
    """A rank's time by kind, as the table beside the picture states it."""

    rank: int
    host: str
    operations: int
    seconds_by_kind: dict[str, float]
    moved_bytes: int
    unfinished: str


def job_end(job: JobRecord) -> float:
    """The end of the job's time axis, never zero."""
    times = [job.duration_s]
    for trace in job.ranks:
        times += [span.start for span in trace.spans]
        times += [span.end for span in trace.spans if span.end is not None]
    for fault in job.faults:
        times += [fault.start, fault.end or 0.0]
    return max((time for time in times if math.isfinite(time) and time > 0), default=1e-3)


def place(trace: RankTrace, end: float) -> tuple[Placed, ...]:
    """Every drawable operation by start, those that overlap in different rows."""
    free_from = [-math.inf] * MAX_ROWS
    placed: list[Placed] = []
    drawable = (span for span in trace.spans if _drawable(span))
    for span in sorted(drawable, key=lambda span: span.start):
        start = max(span.start, 0.0)
        stop = max(end if span.end is None else span.end, start)
        row = next((r for r in range(MAX_ROWS) if free_from[r] <= start), MAX_ROWS - 1)
        free_from[row] = max(free_from[row], stop)
        placed.append(Placed(span, start, stop, row))
    return tuple(placed)


def joined(placed: Iterable[Placed], shortest: float) -> tuple[Block, ...]:
    """Neighbours in one row become one block while together they last less than `shortest`."""
    blocks: list[list[Placed]] = []
    open_block: dict[int, list[Placed]] = {}
    for one in placed:
        current = open_block.get(one.row)
        if current is not None and one.end - current[0].start < shortest and not one.unfinished:
            current.append(one)
        else:
            open_block[one.row] = [one]
            blocks.append(open_block[one.row])
    return tuple(Block(tuple(block)) for block in blocks)


def tally(trace: RankTrace, end: float) -> Tally:
    totals = dict.fromkeys(KINDS, 0.0)
    unfinished = ""
    for one in place(trace, end):
        totals[one.span.kind] = totals.get(one.span.kind, 0.0) + one.end - one.start
        if one.unfinished:
            unfinished = one.span.operation
    return Tally(
        rank=trace.rank,
        host=trace.host,
        operations=len(trace.spans),
        seconds_by_kind=totals,
        moved_bytes=sum(span.bytes for span in trace.spans),
        unfinished=unfinished,
    )


def _drawable(span: Span) -> bool:
    return math.isfinite(span.start) and (span.end is None or math.isfinite(span.end))
