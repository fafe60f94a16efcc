"""Which traced send belongs to which traced receive, where the traces tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from grader.report.lanes import Placed
from grader.result import RankTrace
from grader.result_json import LEFT_OUT

_SENDS = {"send", "isend", "ssend", "issend", "bsend", "ibsend", "rsend", "irsend"}
_SENDS |= {"sendrecv-send", "sendrecv_replace-send"}
_RECEIVES = {"recv", "irecv", "mrecv", "sendrecv", "sendrecv_replace"}


@dataclass(frozen=True)
class End:
    """One end of a message: the operation, and its rank's place in the job."""

    lane: int
    placed: Placed


def paired(lanes: list[tuple[RankTrace, tuple[Placed, ...]]]) -> Iterator[tuple[End, End]]:
    """The n-th send with the n-th receive of the same source, destination and tag.

    MPI keeps that order. Not paired: ranks that received from anyone or with any tag, since such
    a receive may have taken a message of any key, and ranks whose early operations were left out.
    """
    sends: dict[tuple[int, int, int], list[End]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[End]] = defaultdict(list)
    cut = {
        trace.rank for trace, placed in lanes if any(one.span.kind == LEFT_OUT for one in placed)
    }
    for lane, (trace, placed) in enumerate(lanes):
        wild = any(
            _name(one) in _RECEIVES and (one.span.peer < 0 or one.span.tag < 0) for one in placed
        )
        for one in placed:
            span = one.span
            if span.peer < 0 or span.peer in cut or trace.rank in cut:
                continue
            if _name(one) in _SENDS:
                sends[trace.rank, span.peer, span.tag].append(End(lane, one))
            elif _name(one) in _RECEIVES and not wild:
                receives[span.peer, trace.rank, span.tag].append(End(lane, one))
    for key, begun in sends.items():
        yield from zip(begun, receives.get(key, ()), strict=False)


def _name(placed: Placed) -> str:
    return placed.span.operation.rpartition(".")[2].lower()
