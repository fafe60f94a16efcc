"""A hang in words: who waits for whom, in which call, on which line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from grader.report.plain_text import one_line, plain, shortened
from grader.report.quantity import size
from grader.result import Hang, RankTrace, WaitEdge

_SENDING = "-send"
"""The traced name of the sending half of a call that does both, as in Sendrecv-send."""


@dataclass(frozen=True)
class HangWords:
    """cause: one paragraph; waits: a sentence for each rank; cycle: empty if the cause tells it."""

    cause: str
    waits: tuple[str, ...]
    cycle: str


def hang_in_words(hang: Hang, source: str) -> HangWords:
    """The lines after the first of a cause are its ranks, already in words."""
    cause, *told = [line.strip() for line in plain(hang.cause).split("\n") if line.strip()] or [""]
    return HangWords(
        cause,
        tuple(told) or tuple(edge_in_words(edge, source) for edge in hang.edges),
        "" if "cycle" in cause.lower() else cycle_in_words(hang.cycle),
    )


def source_name(submission: str) -> str:
    """The learner's file as messages name it."""
    return shortened(PurePath(submission).name, 60) or "solution.py"


def edge_in_words(edge: WaitEdge, source: str) -> str:
    """ "rank 2 waits in Recv from rank 1, tag 7, solution.py:41" """
    operation = shortened(edge.operation.removesuffix(_SENDING), 40) or "a call"
    words = f"rank {edge.rank} waits in {operation}"
    if edge.peer >= 0:
        words += f" {_preposition(edge.operation)} rank {edge.peer}"
    elif edge.peer == -2:
        words += f" {_preposition(edge.operation)} any rank"
    if edge.tag >= 0:
        words += f", tag {edge.tag}"
    if edge.bytes > 0:
        words += f", {size(edge.bytes)}"
    return f"{words}, {source}:{edge.line}" if edge.line > 0 else words


def cycle_in_words(cycle: tuple[int, ...]) -> str:
    if not cycle:
        return ""
    if len(cycle) == 1:
        return f"rank {cycle[0]} waits for itself"
    steps = ", ".join(
        f"rank {rank} {'waits ' if place == 0 else ''}for rank {following}"
        for place, (rank, following) in enumerate(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    )
    return f"{steps}: a cycle, so none of them can go on"


def stands_at(trace: RankTrace) -> str:
    """Where this rank's program stood when the job ended; empty if unknown."""
    return " < ".join(one_line(frame) for frame in trace.stack)


def in_cycle(hang: Hang, edge: WaitEdge) -> bool:
    following = dict(zip(hang.cycle, (*hang.cycle[1:], *hang.cycle[:1]), strict=True))
    return following.get(edge.rank) == edge.peer


def _preposition(operation: str) -> str:
    name = operation.lower()
    if name.endswith(_SENDING):
        return "to"
    if "recv" in name or "receive" in name or "probe" in name:
        return "from"
    return "to" if "send" in name else "for"
