"""Say why a job does not end: where each rank stands and whom it waits for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.rank.trace import (
    BLOCKING,
    COLLECTIVE,
    EVERYTHING,
    POSTED,
    POSTED_COLLECTIVE,
    TraceRecord,
)
from grader.result import Hang, WaitEdge

_WAITS_FOR_ALL = {"Wait", "wait", "Waitall", "waitall", "Waitany"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_ANY = -2
_NOBODY = -1
_COLLECTIVES = (COLLECTIVE, POSTED_COLLECTIVE)
# Of MPI's fault tolerance (ULFM): they end without the dead.
_WITHOUT_THE_DEAD = {"Agree", "Iagree", "Shrink"}
_POSTED = (POSTED, POSTED_COLLECTIVE)
_THREAD = re.compile(r"^(Current thread|Thread) .*$", re.MULTILINE)
_REMEDIES = {
    "mpi": "Small messages hide this, because MPI buffers them; {size:,} bytes are not buffered. "
    "Post the receive first (Irecv) or use Sendrecv.",
    "torch": "Post the receive first (irecv), or hand both to batch_isend_irecv.",
}


@dataclass(frozen=True)
class Standing:
    """Where one rank is at the deadline.

    blocked: unfinished operations it waits on; empty while it computes. finished: it gave its
    answer. line: its line in the learner's file, 0 if unknown.
    """

    rank: int
    blocked: tuple[TraceRecord, ...]
    finished: bool
    line: int
    dead: bool = False


def parse_stack(text: str, folder: str, entry: str) -> tuple[str, ...]:
    """Frames of the learner's own files in a faulthandler dump, innermost first.

    Of the thread that was interrupted, or of another one where that is none of the learner's.
    """
    parts = _THREAD.split(text[:100_000])
    threads = list(zip(parts[1::2], parts[2::2], strict=True)) or [("", parts[0])]
    for _, dump in sorted(threads, key=lambda thread: thread[0] != "Current thread"):
        frames = [
            f"{path[len(folder) :].lstrip('/') or entry}:{line} in {function}"
            for path, line, function in _FRAME.findall(dump)
            if path.startswith(folder)
        ]
        if frames:
            return tuple(frames[:12])
    return ()


def blocked_on(records: Sequence[TraceRecord]) -> tuple[TraceRecord, ...]:
    """The unfinished operations that hold a rank up.

    A wait on requests holds it up through the posted operations still open; one of those alone
    (posted, not waited for) does not.
    """
    unfinished = [record for record in records if record.end is None]
    holding = [record for record in unfinished if record.way in (BLOCKING, COLLECTIVE)]
    if not holding:
        return ()
    last = holding[-1]
    posted = tuple(record for record in unfinished if record.way in _POSTED)
    if last.awaits != EVERYTHING:
        return tuple(record for record in posted if record.index == last.awaits) or (last,)
    if last.operation in _WAITS_FOR_ALL:
        return posted or (last,)
    if last.operation.startswith(("Sendrecv", "sendrecv")):
        partner = tuple(
            r for r in posted if r.operation.endswith("-send") and r.index == last.index - 1
        )
        return (*partner, last)
    return (last,)


def explain(standings: Sequence[Standing], entry: str, runtime: str = "mpi") -> Hang:
    """Name the cause: a cycle of waits, a missing or dead rank, or a rank that computes on.

    runtime: `runtime` of problem.toml, whose words the remedy uses.
    """
    by_rank = {standing.rank: standing for standing in standings}
    edges = tuple(
        WaitEdge(
            s.rank,
            _NOBODY if record.way in _COLLECTIVES and record.peer == s.rank else record.peer,
            record.operation,
            s.line or record.line,
            record.tag,
            record.bytes,
        )
        for s in standings
        for record in s.blocked
    )
    in_collective = {
        s.rank: s.blocked[0] for s in standings if s.blocked and s.blocked[0].way in _COLLECTIVES
    }
    cycle = _cycle(edges)
    causes = (
        _dead_rank(by_rank, edges),
        # Roots of collectives that nobody agrees on look like a cycle, and are none.
        None if in_collective.keys() & set(cycle) else _cycle_of_waits(cycle, edges, runtime),
        _collectives_apart(in_collective, by_rank, entry),
        _cycle_of_waits(cycle, edges, runtime),
        _returned_peer(by_rank, edges),
        _computing(standings, entry),
    )
    cause = next(
        (text for text in causes if text), "The ranks wait for messages that were never sent."
    )
    sentences = [_sentence(standing, entry) for standing in standings]
    return Hang(f"{cause}\n" + "\n".join(sentences), edges, cycle)


def _dead_rank(by_rank: Mapping[int, Standing], edges: Sequence[WaitEdge]) -> str | None:
    dead = [rank for rank, standing in by_rank.items() if standing.dead]
    waiting = sorted({edge.rank for edge in edges if edge.peer in dead})
    if not waiting:
        return None
    wait = "waits" if len(waiting) == 1 else "wait"
    return f"Rank {dead[0]} is gone, and {_ranks(waiting).lower()} still {wait} for it."


def _cycle_of_waits(cycle: Sequence[int], edges: Sequence[WaitEdge], runtime: str) -> str | None:
    if not cycle:
        return None
    path = " -> ".join(str(rank) for rank in (*cycle, cycle[0]))
    mine = [edge for edge in edges if edge.rank in cycle and edge.peer in cycle]
    if all("end" in edge.operation and "recv" not in edge.operation.lower() for edge in mine):
        remedy = _REMEDIES.get(runtime, "").format(size=max(edge.bytes for edge in mine))
        return (
            f"A cycle of sends: {path}. Each rank waits until the next one receives, and none "
            f"does. {remedy}"
        )
    return f"A cycle of waits: {path}. Nobody in it can go on before the others."


def _collectives_apart(
    inside: Mapping[int, TraceRecord], by_rank: Mapping[int, Standing], entry: str
) -> str | None:
    """What keeps a collective from ending: another one, other arguments, or a rank not there."""
    for _, record in sorted(inside.items()):
        needed = [r for r in sorted(by_rank) if not record.members or record.members >> r & 1]
        there = {r: inside[r] for r in needed if r in inside}
        names = sorted({other.operation for other in there.values()})
        if len(names) > 1:
            return (
                f"The ranks are in different collectives: {', '.join(names)}."
                f"{_left_behind(there, needed, by_rank)}"
            )
        roots = {other.peer for other in there.values()}
        if len(roots) > 1:
            named = ", ".join(f"rank {r} names rank {o.peer}" for r, o in sorted(there.items()))
            return f"The ranks disagree about the root of {record.operation}: {named}."
        absent = [r for r in needed if r not in inside]
        if record.operation in _WITHOUT_THE_DEAD:
            absent = [r for r in absent if not by_rank[r].dead]
        if absent:
            stand = "stands" if len(there) == 1 else "stand"
            everyone = "everyone who lives" if names[0] in _WITHOUT_THE_DEAD else "everyone"
            gone = [r for r in absent if by_rank[r].dead]
            why = f"{_ranks(absent).lower()} never came{_busy(by_rank[absent[0]], entry)}"
            if gone:
                why = f"{_ranks(gone).lower()} {'is' if len(gone) == 1 else 'are'} gone"
            return f"{_ranks(sorted(there))} {stand} in {names[0]}, which needs {everyone}; {why}."
        if len({other.bytes for other in there.values()}) > 1:
            sizes = ", ".join(f"rank {r} {o.bytes:,} bytes" for r, o in sorted(there.items()))
            return f"The ranks are in {record.operation} with different sizes: {sizes}."
    return None


def _left_behind(
    there: Mapping[int, TraceRecord], needed: Sequence[int], by_rank: Mapping[int, Standing]
) -> str:
    """What to do when some noticed a death and left a collective that others still stand in."""
    dead = [rank for rank in needed if by_rank[rank].dead]
    left = sorted(r for r, record in there.items() if record.operation not in _WITHOUT_THE_DEAD)
    if not dead or not left or len(left) == len(there):
        return ""
    verb = "was" if len(left) == 1 else "were"
    return (
        f" Rank {dead[0]} is gone; {_ranks(left).lower()} {verb} left in {there[left[0]].operation}"
        " by those who noticed it. Who notices a death calls Revoke first, so that nobody waits on."
    )


def _busy(standing: Standing, entry: str) -> str:
    """Where a rank that computes stands, as the end of a sentence about it."""
    if standing.blocked or standing.finished or standing.dead or not standing.line:
        return ""
    return f" (rank {standing.rank} computes at {entry}:{standing.line})"


def _returned_peer(by_rank: Mapping[int, Standing], edges: Sequence[WaitEdge]) -> str | None:
    for edge in edges:
        peer = by_rank.get(edge.peer)
        if peer is not None and peer.finished:
            return (
                f"Rank {edge.rank} waits for rank {edge.peer}, which has already returned: "
                "one more message is expected than is sent (or its tag differs)."
            )
    return None


def _computing(standings: Sequence[Standing], entry: str) -> str | None:
    computing = [s for s in standings if not s.blocked and not s.finished and not s.dead]
    if not computing:
        return None
    where = f" at {entry}:{computing[0].line}" if computing[0].line else ""
    verbs = ("waits", "does") if len(computing) == 1 else ("wait", "do")
    return (
        f"{_ranks([s.rank for s in computing])} {verbs[0]} for nobody and {verbs[1]} not "
        f"return{where}: an endless loop, or too slow."
    )


def _sentence(standing: Standing, entry: str) -> str:
    where = f", {entry}:{standing.line}" if standing.line else ""
    if standing.finished:
        return f"rank {standing.rank} has returned."
    if standing.dead:
        return f"rank {standing.rank} is gone."
    if not standing.blocked:
        return f"rank {standing.rank} is computing{where}."
    parts = []
    for record in standing.blocked[:4]:
        line = standing.line or record.line
        parts.append(_operation(record, f", {entry}:{line}" if line else ""))
    more = f" and {len(standing.blocked) - 4} more" if len(standing.blocked) > 4 else ""
    return f"rank {standing.rank} waits in {'; '.join(parts)}{more}."


def _operation(record: TraceRecord, where: str) -> str:
    size = f" ({record.bytes:,} bytes)" if record.bytes else ""
    name = (
        record.operation.removesuffix("-send")
        if record.operation.endswith("-send")
        else record.operation
    )
    if record.peer == _NOBODY or record.way in _COLLECTIVES:
        root = f" with root {record.peer}" if record.peer >= 0 else ""
        return f"{name}{root}{size}{where}"
    lowered = record.operation.lower()
    receiving = ("recv" in lowered and not lowered.endswith("-send")) or "probe" in lowered
    direction = "from" if receiving else "to"
    peer = "any rank" if record.peer == _ANY else f"rank {record.peer}"
    return f"{name} {direction} {peer}{size}{where}"


def _ranks(ranks: Sequence[int]) -> str:
    words = ", ".join(str(rank) for rank in ranks)
    return f"Rank {words}" if len(ranks) == 1 else f"Ranks {words}"


def _cycle(edges: Sequence[WaitEdge]) -> tuple[int, ...]:
    """A cycle among the wait edges, starting at its lowest rank; () if there is none."""
    following: dict[int, list[int]] = {}
    for edge in edges:
        following.setdefault(edge.rank, []).append(edge.peer)
    done: set[int] = set()
    for start in sorted(following):
        path: list[int] = []
        found = _walk(start, following, path, done)
        if found:
            lowest = found.index(min(found))
            return tuple(found[lowest:] + found[:lowest])
    return ()


def _walk(
    rank: int, following: Mapping[int, Sequence[int]], path: list[int], done: set[int]
) -> list[int]:
    if rank in path:
        return path[path.index(rank) :]
    if rank in done:
        return []
    path.append(rank)
    for peer in following.get(rank, ()):
        found = _walk(peer, following, path, done)
        if found:
            return found
    path.pop()
    done.add(rank)
    return []
