"""The job's ranks over MPI: the world, and a traced communicator of its first ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpi4py import MPI

from grader.rank.refusal import RefusedCall
from grader.rank.sealed_mpi import Seal
from grader.rank.trace import Recorder
from grader.rank.traced_mpi import TracedComm, install


class MpiRuntime:
    """See grader.rank.runtime.Runtime."""

    def __init__(self, settings: Mapping[str, Any], out: Path, source: str) -> None:
        if not MPI.Is_initialized():  # in a rank that was forked with mpi4py imported
            MPI.Init_thread()
        self._world = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self._recorder = Recorder(out / f"{settings['job']}.trace.r{self.rank}", source)
        self._refused = frozenset(settings["refuse"])
        self._groups: dict[int, tuple[MPI.Intracomm, TracedComm]] = {}
        self._seal = Seal(self._refused, source)

    def group(self, size: int) -> TracedComm:
        """A traced communicator of the job's first `size` ranks. Collective over those."""
        return self._pair(size)[1]

    def barrier(self, size: int) -> None:
        own, distance = self._pair(size)[0], 1
        while distance < size:  # MPI's own may be refused
            after, before = (self.rank + distance) % size, (self.rank - distance) % size
            own.Sendrecv([b"", MPI.BYTE], after, 0, [bytearray(), MPI.BYTE], before, 0)
            distance *= 2

    def progress(self) -> None:
        # A send that has returned may still sit in Open MPI's own queue, which moves only inside
        # MPI calls. Without this, a rank that is done could starve one that still receives.
        self._world.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def refused_use(self) -> RefusedCall | None:
        return self._seal.refused_use

    def _pair(self, size: int) -> tuple[MPI.Intracomm, TracedComm]:
        """Two communicators of the same ranks, so that ours and the learner's never meet."""
        if size not in self._groups:
            members = self._world.Get_group().Incl(list(range(size)))
            own = self._world.Create_group(members, tag=size)
            traced = install(own.Dup(), self._recorder, self._refused, size)
            self._groups[size] = own, traced
        return self._groups[size]
