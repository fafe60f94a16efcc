"""What rank_main.py needs of the way a problem's ranks talk to each other, and the choice of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Runtime(Protocol):
    """The ranks of one job. rank: this process; size: how many there are."""

    rank: int
    size: int

    def group(self, size: int) -> Any:
        """What a driver is given to talk to the job's first `size` ranks, this one among them."""

    def barrier(self, size: int) -> None:
        """Wait for the first `size` ranks, without touching what the submission uses."""

    def progress(self) -> None:
        """Let the library finish what it has accepted; called again and again between cases."""

    def refused_use(self) -> BaseException | None:
        """What the submission used although the problem forbids it, whether or not it noticed."""


def join(kind: str, settings: Mapping[str, Any], out: Path, source: str) -> Runtime:
    """Join the job. kind: `runtime` of problem.toml; only its library is imported.

    out: folder for the trace. source: folder of the learner's files.
    """
    if kind == "mpi":
        from grader.rank.mpi_runtime import MpiRuntime

        return MpiRuntime(settings, out, source)
    if kind == "torch":
        from grader.rank.torch_runtime import TorchRuntime

        return TorchRuntime(settings, out, source)
    return SoloRuntime(settings, out, source)


class SoloRuntime:
    """One process and nobody to talk to."""

    def __init__(self, _settings: Mapping[str, Any], _out: Path, _source: str) -> None:
        self.rank, self.size = 0, 1

    def group(self, size: int) -> None:
        return None

    def barrier(self, size: int) -> None:
        """There is nobody to wait for."""

    def progress(self) -> None:
        """There is nothing under way."""

    def refused_use(self) -> None:
        """Nothing is watched."""
