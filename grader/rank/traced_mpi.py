"""The communicator that a submission is given: mpi4py's own, recording what is called on it.

Every operation is noted with its peer, tag, bytes and the line in the learner's file. Calls that
the problem forbids raise `RefusedCall` instead of reaching MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from grader.rank.refusal import refuse
from grader.rank.trace import (
    BLOCKING,
    COLLECTIVE,
    POSTED,
    POSTED_COLLECTIVE,
    Recorder,
    member_bits,
)
from grader.rank.traced_request import TracedRequest

ANY = -2
NOBODY = -1

_SENDS = ("Send", "Ssend", "Bsend", "Rsend", "send", "ssend", "bsend")
_POSTED_SENDS = ("Isend", "Issend", "Ibsend", "Irsend", "isend", "issend", "ibsend")
_COLLECTIVES = [
    "Barrier",
    "Bcast",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
    "Alltoallw",
    "Reduce",
    "Allreduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
    "Exscan",
    "barrier",
    "bcast",
    "gather",
    "scatter",
    "allgather",
    "alltoall",
    "reduce",
    "allreduce",
    "scan",
    "exscan",
    "Agree",
]
_POSTED_COLLECTIVES = [
    "Ibarrier",
    "Ibcast",
    "Igather",
    "Igatherv",
    "Iscatter",
    "Iscatterv",
    "Iallgather",
    "Iallgatherv",
    "Ialltoall",
    "Ialltoallv",
    "Ialltoallw",
    "Ireduce",
    "Iallreduce",
    "Ireduce_scatter",
    "Ireduce_scatter_block",
    "Iscan",
    "Iexscan",
    "Iagree",
]
_NEW_COMMUNICATORS = ("Split", "Dup", "Clone", "Create", "Create_group", "Split_type", "Shrink")


def buffer_bytes(buffer: Any) -> int:
    """Size of a message buffer in bytes; 0 where it cannot be told."""
    if isinstance(buffer, (list, tuple)) and buffer:
        buffer = buffer[0]
    size = getattr(buffer, "nbytes", None)
    if isinstance(size, int):
        return size
    try:
        return memoryview(buffer).nbytes
    except TypeError:
        return 0


class TracedComm(MPI.Intracomm):
    """An intracommunicator that records. `world_ranks`: rank in the job of each of its ranks."""

    recorder: Recorder
    refused: Collection[str]
    world_ranks: Sequence[int]

    @classmethod
    def wrap(
        cls,
        comm: MPI.Intracomm,
        recorder: Recorder,
        refused: Collection[str],
        world_ranks: Sequence[int],
    ) -> TracedComm:
        traced = cls(comm)
        traced.recorder, traced.refused, traced.world_ranks = recorder, refused, world_ranks
        return traced

    def job_rank(self, rank: Any) -> int:
        """Rank in the whole job of `rank` here; ANY and NOBODY for MPI's wildcards."""
        if rank == MPI.ANY_SOURCE:
            return ANY
        return self.world_ranks[rank] if 0 <= rank < len(self.world_ranks) else NOBODY

    def members(self) -> int:
        return member_bits(self.world_ranks)

    def _job_ranks(self, group: MPI.Group) -> list[int]:
        """Ranks in the whole job of a group's ranks."""
        ranks = list(range(group.Get_size()))
        return [
            self.job_rank(rank)
            for rank in MPI.Group.Translate_ranks(group, ranks, self.Get_group())
        ]

    def _refuse(self, name: str) -> None:
        if name in self.refused:
            refuse(name)

    def _record(self, index: int, call: Callable[[], Any], posted: bool) -> Any:
        """Run an operation that was begun; what it raised is over as well."""
        try:
            result = call()
        except BaseException:
            self.recorder.finish(index)
            raise
        if posted:
            return TracedRequest.wrap(result, index)
        self.recorder.finish(index)
        return result


def _argument(args: Sequence[Any], kwargs: dict[str, Any], at: int, name: str, default: Any) -> Any:
    return kwargs.get(name, args[at] if len(args) > at else default)


def _install(name: str, method: Callable[..., Any]) -> None:
    method.__name__ = name
    method.__doc__ = getattr(MPI.Intracomm, name).__doc__
    setattr(TracedComm, name, method)


def _trace_send(name: str, posted: bool) -> None:
    original = getattr(MPI.Intracomm, name)

    def method(self: TracedComm, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)
        peer = self.job_rank(_argument(args, kwargs, 1, "dest", NOBODY))
        tag = _argument(args, kwargs, 2, "tag", 0)
        size = buffer_bytes(args[0] if args else kwargs.get("buf", kwargs.get("obj")))
        index = self.recorder.begin(name, POSTED if posted else BLOCKING, peer, tag, size)
        return self._record(index, lambda: original(self, *args, **kwargs), posted)

    _install(name, method)


def _trace_receive(name: str, posted: bool) -> None:
    original = getattr(MPI.Intracomm, name)
    first = 0 if name in ("Probe", "probe", "Mprobe", "mprobe") else 1

    def method(self: TracedComm, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)
        peer = self.job_rank(_argument(args, kwargs, first, "source", MPI.ANY_SOURCE))
        tag = _argument(args, kwargs, first + 1, "tag", MPI.ANY_TAG)
        size = buffer_bytes(args[0] if args else kwargs.get("buf")) if first else 0
        index = self.recorder.begin(name, POSTED if posted else BLOCKING, peer, tag, size)
        return self._record(index, lambda: original(self, *args, **kwargs), posted)

    _install(name, method)


def _trace_exchange(name: str) -> None:
    """Sendrecv and its kin block on two peers; each gets a record."""
    original = getattr(MPI.Intracomm, name)
    receive_at = 3 if name == "Sendrecv_replace" else 4

    def method(self: TracedComm, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)
        size = buffer_bytes(args[0] if args else kwargs.get("sendbuf", kwargs.get("buf")))
        dest = self.job_rank(_argument(args, kwargs, 1, "dest", NOBODY))
        source = self.job_rank(_argument(args, kwargs, receive_at, "source", MPI.ANY_SOURCE))
        send_tag = _argument(args, kwargs, 2, "sendtag", 0)
        receive_tag = _argument(args, kwargs, receive_at + 1, "recvtag", MPI.ANY_TAG)
        sending = self.recorder.begin(f"{name}-send", POSTED, dest, send_tag, size)
        receiving = self.recorder.begin(name, BLOCKING, source, receive_tag, size)
        try:
            return original(self, *args, **kwargs)
        finally:
            self.recorder.finish(sending)
            self.recorder.finish(receiving)

    _install(name, method)


def _trace_collective(name: str, posted: bool) -> None:
    original = getattr(MPI.Intracomm, name)

    def method(self: TracedComm, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)
        size = buffer_bytes(args[0]) if args else 0
        root = _argument((), kwargs, 0, "root", NOBODY)
        peer = self.job_rank(root) if isinstance(root, int) and root >= 0 else NOBODY
        way = POSTED_COLLECTIVE if posted else COLLECTIVE
        index = self.recorder.begin(name, way, peer, NOBODY, size, members=self.members())
        return self._record(index, lambda: original(self, *args, **kwargs), posted)

    _install(name, method)


def _trace_creation(name: str) -> None:
    original = getattr(MPI.Intracomm, name)

    def method(self: TracedComm, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)
        # All other ways need every rank of the communicator.
        group = _argument(args, kwargs, 0, "group", None) if name == "Create_group" else None
        taking_part = self.world_ranks if group is None else self._job_ranks(group)
        index = self.recorder.begin(name, COLLECTIVE, members=member_bits(taking_part))
        created = self._record(index, lambda: original(self, *args, **kwargs), False)
        if created == MPI.COMM_NULL:
            return created
        world_ranks = self._job_ranks(created.Get_group())
        return TracedComm.wrap(created, self.recorder, self.refused, world_ranks)

    _install(name, method)


def _refusing(name: str) -> Callable[..., Any]:
    def method(*_args: Any, **_kwargs: Any) -> Any:
        refuse(name)

    return method


for _name in _SENDS:
    _trace_send(_name, posted=False)
for _name in _POSTED_SENDS:
    _trace_send(_name, posted=True)
for _name in ("Recv", "recv", "Probe", "probe", "Mprobe", "mprobe"):
    _trace_receive(_name, posted=False)
for _name in ("Irecv", "irecv"):
    _trace_receive(_name, posted=True)
for _name in ("Sendrecv", "sendrecv", "Sendrecv_replace"):
    _trace_exchange(_name)
# mpi4py before 4.0 has no Agree, Iagree and Shrink.
for _name in filter(partial(hasattr, MPI.Intracomm), _COLLECTIVES):
    _trace_collective(_name, posted=False)
for _name in filter(partial(hasattr, MPI.Intracomm), _POSTED_COLLECTIVES):
    _trace_collective(_name, posted=True)
for _name in filter(partial(hasattr, MPI.Intracomm), _NEW_COMMUNICATORS):
    _trace_creation(_name)


def install(
    comm: MPI.Intracomm, recorder: Recorder, refused: Collection[str], size: int
) -> TracedComm:
    """Trace `comm`, whose ranks are the job's first `size`, and every request made from now on."""
    TracedRequest.recorder = recorder
    for name in refused:
        if hasattr(MPI.Intracomm, name) and name not in vars(TracedComm):
            _install(name, _refusing(name))
    MPI.Request = TracedRequest  # type: ignore[misc]  # so that MPI.Request.Waitall is seen too
    return TracedComm.wrap(comm, recorder, refused, range(size))
