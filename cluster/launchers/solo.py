"""The launcher of programs that need no other rank: one process on the first host."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from typing import Self

from cluster.interface import Cluster, Host
from cluster.launchers.job import DEFAULT_OPTIONS, JobOptions, RankEnd, python_command
from cluster.launchers.output import CappedOutput
from cluster.launchers.program import Program


class SoloJob:
    """One running program."""

    def __init__(self, host: Host, process: subprocess.Popen[bytes], output: CappedOutput) -> None:
        self._host, self._process, self._output = host, process, output

    @property
    def placement(self) -> tuple[Host, ...]:
        return (self._host,)

    def running(self) -> bool:
        return self._process.poll() is None

    def ends(self) -> list[RankEnd]:
        status = self._process.poll()
        if status is None:
            return []
        # A host's agent reports a signal as a shell does.
        return [RankEnd(0, self._host.name, 128 - status if status > 128 else status)]

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def wait_for_ranks(self, timeout_s: float) -> None:
        self.wait(timeout_s)

    def output(self) -> str:
        return self._output.text()

    def end(self) -> None:
        """End the program. What it started is ended with its host."""
        if self.running():
            self._process.terminate()
            if self.wait(0.3) is None:
                self._process.kill()
                # What runs on a paused host goes when the host goes on or is closed.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        self._output.wait(0.5)


class SoloLauncher:
    """Starts a program once, on the first host. Keeps nothing between jobs."""

    name = "solo"

    def prepare(self) -> None:
        """Nothing takes long."""

    def start(
        self,
        cluster: Cluster,
        program: Callable[[Host], Program],
        ranks: int,
        options: JobOptions = DEFAULT_OPTIONS,
    ) -> SoloJob:
        """Start the program. Raises ValueError when more than one rank is asked for."""
        if ranks != 1:
            raise ValueError(f"{ranks} ranks asked for; a program without a launcher has one")
        host = cluster.hosts[0]
        plain = program(host)
        read, write = os.pipe()
        try:
            process = host.start(
                python_command(host, plain), env=plain.environment, stdout=write, stderr=write
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        return SoloJob(host, process, CappedOutput(os.fdopen(read, "rb")))

    def close(self) -> None:
        """Nothing is kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
