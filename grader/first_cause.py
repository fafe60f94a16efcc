"""When several ranks report trouble, say which one had it first and what it was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.launchers.job import RankEnd
from grader.ended import CheckEnded, Crashed, RefusedCallSeen

# What a rank is told by its library because another one is gone.
_SECONDARY = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket closed|ECONNRESET|EPIPE"
    r"|MPI_ERR_PROC_FAILED|MPI_ERR_REVOKED|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)


def error_message(rank: int, status: Mapping[str, Any], when: str) -> str:
    """One sentence about the error that a rank reported."""
    kind, text = str(status.get("type", "an error"))[:100], str(status.get("text", ""))[:1500]
    frames = status.get("frames")
    where = ""
    if isinstance(frames, list) and frames:
        where = " at " + str(frames[-1])[:200]
    if kind == "NotImplementedError":
        return f"rank {rank} reached a part that is not written yet{where}"
    if kind == "SystemExit":
        return f"rank {rank} called sys.exit({text}){where} {when}, instead of returning"
    return f"rank {rank} raised {kind}{where} {when}: {text}"


def end_message(end: RankEnd, down: bool, when: str) -> str:
    """One sentence about a rank that ended without an answer. down: its host was killed."""
    if down:
        return f"rank {end.rank} is gone {when}: its host {end.host} is down"
    if end.status == -9:
        return f"{end.says()} {when}: it used more memory than {end.host} has, or was killed"
    if end.status is not None and end.status < 0:
        return f"{end.says()} {when}: a crash in compiled code, such as a buffer that is too small"
    return f"{end.says()} {when}: it called os._exit or Abort, or its process was ended"


def is_trouble(status: Mapping[str, Any]) -> bool:
    """Whether a rank's status says anything but that it went well."""
    return bool(status.get("status", "done") != "done")


def first_cause(
    statuses: Mapping[int, Mapping[str, Any]],
    ends: Sequence[RankEnd],
    down: Sequence[str],
    when: str,
) -> CheckEnded | None:
    """The verdict on a case that some ranks did not get through; None when all is well.

    ends: ranks that ended, the first one first. down: names of hosts that were killed. A refused
    call counts before all else, then a rank that died, since a dead rank makes others raise and
    never the other way round, then the earliest error that is no echo of another rank's.
    """
    troubled = {rank: status for rank, status in statuses.items() if is_trouble(status)}
    for rank, status in sorted(troubled.items()):
        if status.get("status") == "refused":
            return RefusedCallSeen(error_message(rank, status, when))
    for end in ends:
        if end.rank not in statuses:
            return Crashed(end_message(end, end.host in down, when))
    if not troubled:
        return None
    rank, status = min(troubled.items(), key=_precedence)
    return Crashed(error_message(rank, status, when))


def _precedence(item: tuple[int, Mapping[str, Any]]) -> tuple[bool, float, int]:
    rank, status = item
    at = status.get("at")
    echo = bool(_SECONDARY.search(str(status.get("text", ""))[:4000]))
    return echo, at if isinstance(at, float) else float("inf"), rank
