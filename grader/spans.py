"""Turn a rank's trace into its timeline: operations, and computing in the gaps of each case."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from grader.rank.trace import COLLECTIVE, POSTED, POSTED_COLLECTIVE, TraceRecord
from grader.result import Span

_SHOWN = 400
_SHORTEST_GAP_S = 1e-4
_CLOCK_ERROR_S = 1.0
_POSTED = (POSTED, POSTED_COLLECTIVE)


@dataclass(frozen=True)
class Window:
    """One case, from revealing its input to its end, in seconds of this machine's clock."""

    start: float
    end: float


def spans(
    records: Sequence[TraceRecord], windows: Sequence[Window], zero: float, clock_offset: float
) -> tuple[Span, ...]:
    """The newest operations of a rank on the job's time axis.

    zero: start of the axis on this machine's clock. clock_offset: what to add to the records' times
    to get this machine's.
    """
    shift = clock_offset - zero
    latest = time.monotonic() + _CLOCK_ERROR_S - zero
    kept = [
        record
        for record in records[-_SHOWN:]
        # Ranks write what they like; a time outside of the job would draw an endless axis.
        if -_CLOCK_ERROR_S <= record.start + shift <= latest
        and (record.end is None or record.end + shift <= latest)
    ]
    found = [_operation(record, shift) for record in kept]
    for window in windows:
        found += _computing(kept, window.start - zero, window.end - zero, shift)
    return tuple(sorted(found, key=lambda span: span.start))


def _computing(
    records: Sequence[TraceRecord], start: float, end: float, shift: float
) -> list[Span]:
    found: list[Span] = []
    at = start
    for record in records:
        began = record.start + shift
        if began < start or began > end or record.way in _POSTED:
            continue
        if began - at > _SHORTEST_GAP_S:
            found.append(Span("compute", "compute", at, began))
        at = max(at, record.end + shift if record.end is not None else end)
    if end - at > _SHORTEST_GAP_S:
        found.append(Span("compute", "compute", at, end))
    return found


def _operation(record: TraceRecord, shift: float) -> Span:
    lowered = record.operation.lower()
    waits = record.way not in _POSTED and (
        record.way == COLLECTIVE or any(word in lowered for word in ("recv", "wait", "probe"))
    )
    return Span(
        "wait" if waits else "communication",
        record.operation,
        record.start + shift,
        None if record.end is None else record.end + shift,
        record.peer,
        record.tag,
        record.bytes,
        record.line,
    )
