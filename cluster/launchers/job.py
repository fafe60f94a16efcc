"""What all ways of starting a job share: how one is asked for, and what a running one tells.

A launcher is chosen by what the ranks speak (MPI, torch.distributed, nothing); whoever judges them
is written against these names only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from cluster.interface import Cluster, ClusterError, Host
from cluster.launchers.program import Program


@dataclass(frozen=True)
class JobOptions:
    """fault_tolerant: survivors of a dead rank may go on (under MPI this is ULFM).
    extra: further arguments for mpirun; the other launchers take none."""

    fault_tolerant: bool = False
    extra: tuple[str, ...] = ()


DEFAULT_OPTIONS = JobOptions()


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended. status: exit code, minus the signal's number, None where not known."""

    rank: int
    host: str
    status: int | None

    def says(self) -> str:
        """One sentence for people, without its full stop."""
        where = f"rank {self.rank} on {self.host}"
        if self.status is None:
            return f"{where} ended"
        if self.status < 0:
            return f"{where} was killed by {signal.Signals(-self.status).name}"
        return f"{where} ended with status {self.status}"


class RunningJob(Protocol):
    """A started job. Judge it by its ranks' own results, never by these statuses alone."""

    @property
    def placement(self) -> tuple[Host, ...]:
        """Host of each rank."""

    def running(self) -> bool:
        """False when nothing of the job is left that could still give an answer."""

    def ends(self) -> Sequence[RankEnd]:
        """Ranks known to have ended, the first one to do so first; empty where nobody can tell."""

    def wait(self, timeout_s: float) -> int | None:
        """Exit status of the job, None if it still runs after `timeout_s` seconds."""

    def wait_for_ranks(self, timeout_s: float) -> None:
        """Wait until every rank has ended, at most `timeout_s` seconds."""

    def output(self) -> str:
        """Everything that ranks and launcher printed so far, capped."""

    def end(self) -> None:
        """End every rank and what started them."""


class RankLauncher(Protocol):
    """A way to start jobs. A context manager: what it keeps between jobs goes at the end."""

    name: str

    def prepare(self) -> None:
        """Begin what takes long, without waiting for it."""

    def start(
        self,
        cluster: Cluster,
        program: Callable[[Host], Program],
        ranks: int,
        options: JobOptions = DEFAULT_OPTIONS,
    ) -> RunningJob:
        """Start `ranks` ranks of `program(host)`, filling host after host. Raises ClusterError."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def spread(cluster: Cluster, ranks: int) -> list[tuple[Host, int]]:
    """The hosts in use and how many ranks each gets. Raises ClusterError on too few slots."""
    counts: list[tuple[Host, int]] = []
    left = ranks
    for host in cluster.hosts:
        if left > 0:
            counts.append((host, min(host.slots, left)))
            left -= counts[-1][1]
    if left > 0:
        slots = sum(host.slots for host in cluster.hosts)
        raise ClusterError(f"{ranks} ranks do not fit {slots} slots")
    return counts


def python_command(host: Host, program: Program) -> list[str]:
    """The command line that runs `program` with the host's own interpreter, isolated."""
    return [host.python, "-I", "-B", "-X", "utf8", program.path, *program.arguments]
