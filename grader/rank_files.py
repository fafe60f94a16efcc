"""What the ranks of one job wrote: statuses, answers, traces, stacks. All of it is untrusted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from cluster.interface import ClusterError, Host, OversizedFile
from grader.ended import Failed
from grader.rank.trace import FILE_SIZE, TraceRecord, read_trace
from grader.wire import Malformed, decode_array, decode_json

Array = npt.NDArray[Any]
Status = dict[str, Any]

_STATUS_LIMIT = 64 * 1024
_STACK_LIMIT = 256 * 1024
_MOST_ARRAYS = 64


class RankFiles:
    """The outboxes of the job called `job`, whose ranks are placed on `placement`."""

    def __init__(self, job: str, placement: Sequence[Host]) -> None:
        self._job, self._placement = job, placement

    def exists(self, rank: int, name: str) -> bool:
        return self._placement[rank].mailbox.size(f"{self._job}.{name}") is not None

    def status(self, rank: int, name: str) -> Status | None:
        """The status message `name` of a rank, None if it has not been written."""
        if not self.exists(rank, name):
            return None
        mailbox = self._placement[rank].mailbox
        try:
            return decode_json(mailbox.fetch(f"{self._job}.{name}", _STATUS_LIMIT))
        except FileNotFoundError:
            return None
        except (OversizedFile, Malformed) as error:
            raise Failed(f"rank {rank} handed in a status that cannot be read: {error}") from None

    def answer(self, rank: int, case: int, status: Status, limit: int) -> dict[str, bytes]:
        """The arrays that `status` says were handed in, as they were written. Raises Failed."""
        names = status.get("outputs", [])
        if not isinstance(names, list) or len(names) > _MOST_ARRAYS:
            raise Failed(f"rank {rank} handed in a list of results that cannot be read")
        contents: dict[str, bytes] = {}
        for name in names:
            if not isinstance(name, str) or not name.isidentifier():
                raise Failed(f"rank {rank} handed in a result with the name {name!r}")
            file = f"{self._job}.case{case}.r{rank}.{name}.npy"
            try:
                contents[name] = self._placement[rank].mailbox.fetch(file, limit)
            except FileNotFoundError:
                raise Failed(
                    f"rank {rank} says it handed in {name}, but there is no such result"
                ) from None
            except OversizedFile as error:
                raise Failed(f"rank {rank} handed in too much: {error}") from None
        return contents

    def trace(self, rank: int) -> tuple[TraceRecord, ...]:
        """What the rank did, oldest first; () where nothing can be read."""
        host = self._placement[rank]
        with contextlib.suppress(FileNotFoundError, OversizedFile, ClusterError):
            return read_trace(host.mailbox.fetch(f"{self._job}.trace.r{rank}", FILE_SIZE))
        return ()

    def has_stack(self, rank: int) -> bool:
        return bool(self._placement[rank].mailbox.size(f"{self._job}.stack.r{rank}"))

    def stack_text(self, rank: int) -> str:
        """The fault handler's dump of the rank; "" where there is none."""
        host = self._placement[rank]
        with contextlib.suppress(FileNotFoundError, OversizedFile, ClusterError):
            content = host.mailbox.fetch(f"{self._job}.stack.r{rank}", _STACK_LIMIT)
            return content.decode(errors="replace")
        return ""


def decode(rank: int, contents: Mapping[str, bytes]) -> dict[str, Array]:
    """The arrays of an answer. Raises Failed."""
    try:
        return {name: decode_array(content) for name, content in contents.items()}
    except Malformed as error:
        raise Failed(f"rank {rank} handed in an array that cannot be read: {error}") from None
