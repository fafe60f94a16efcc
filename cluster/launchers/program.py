"""A Python program to start on hosts, and what the ways of starting it have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.interface import Host


@dataclass(frozen=True)
class Program:
    """A Python file to run as `__main__`. Paths are as the host sees them.

    environment comes on top of the host's own. search_path: folders put before the standard
    module path; by default there are none, not even the file's own folder.
    """

    path: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    search_path: Sequence[str] = ()


class RunningRank(Protocol):
    """A started rank. Statuses are those of `subprocess.Popen`, which fits this protocol."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class RunningStore(Protocol):
    """A rendezvous store on the head."""

    @property
    def port(self) -> int: ...

    def kill(self) -> None: ...


class RankStarter(Protocol):
    """A way to start ranks and the store they meet at: warm (forked) or cold."""

    def start_rank(
        self, host: Host, program: Program, *, stdout: int, stderr: int
    ) -> RunningRank: ...

    def start_store(self, address: str) -> RunningStore: ...
