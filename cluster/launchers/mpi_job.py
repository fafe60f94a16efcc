"""A running mpirun, and how each of its ranks ended."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.interface import ClusterError, Host, OversizedFile
from cluster.launchers.job import RankEnd
from cluster.launchers.output import CappedOutput

_ECHO = re.compile(r"error occurred in Socket closed\s[^\n]*reported by process \[\d+,(\d+)\]")
# MPI_ERR_UNKNOWN: with it Open MPI ends a rank whose peer closed its socket.
_ECHO_STATUS = 14
_ENDS_EVERY_S = 0.005
_STATUSES = frozenset(map(str, (*range(129), *(128 + number for number in signal.Signals))))
_STATUS_BYTES = 16
_LEFT_POLL_S = 0.002


class MpiJob:
    """A running mpirun. Judge by the ranks' own results: mpirun may outlive them."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        placement: Sequence[Host],
        session: Path,
        ends_name: str | None,
    ) -> None:
        """session: mpirun's own folder, removed at the end. ends_name: files `NAME.rRANK` of the
        hosts' outboxes tell how each rank ended."""
        assert process.stdout is not None
        self._process = process
        self._output = CappedOutput(process.stdout)
        self._placement = tuple(placement)
        self._session = session
        self._ends_name, self._next_look = ends_name, 0.0
        self._ends: dict[int, RankEnd | None] = {}  # None: mpirun ended it

    @property
    def placement(self) -> tuple[Host, ...]:
        return self._placement

    def running(self) -> bool:
        return self._process.poll() is None

    def ends(self) -> list[RankEnd]:
        """The ranks that ended by themselves, and not because a peer did.

        Those that may have ended because of a peer stand last: what they printed of it can come
        late.
        """
        over, now = not self.running(), time.monotonic()
        if over or now >= self._next_look:
            self._next_look = now + _ENDS_EVERY_S
            self._look_for_ends()
        ends = [end for end in self._ends.values() if end is not None]
        if not ends:
            return []
        if over:
            self._output.wait(0.5)
        echoes = {int(rank) for rank in _ECHO.findall(self.output())}
        own = [end for end in ends if end.rank not in echoes]
        return sorted(own, key=lambda end: end.status == _ECHO_STATUS)

    def _look_for_ends(self) -> None:
        for rank, host in enumerate(self._placement):
            words = [] if rank in self._ends else self._written_end(rank, host)
            if not words or words[0] not in _STATUSES:
                continue
            code, told = int(words[0]), words[1:] == ["told"]
            status = 128 - code if code > 128 else code
            by_mpirun = told and status == -signal.SIGTERM
            self._ends[rank] = None if by_mpirun else RankEnd(rank, host.name, status)

    def _written_end(self, rank: int, host: Host) -> list[str]:
        """What a rank's witness wrote, in words; empty where it has not."""
        if self._ends_name is not None:
            with contextlib.suppress(ClusterError, FileNotFoundError, OversizedFile):
                name = f"{self._ends_name}.r{rank}"
                if host.mailbox.size(name):
                    text = host.mailbox.fetch(name, _STATUS_BYTES)
                    return text.decode("ascii", "replace").split()
        return []

    def wait_for_ranks(self, timeout_s: float) -> None:
        """Wait until every rank has ended; mpirun itself may take longer."""
        deadline = time.monotonic() + timeout_s
        while self.running() and time.monotonic() < deadline:
            self._look_for_ends()
            if len(self._ends) == len(self._placement):
                return
            time.sleep(_LEFT_POLL_S)

    def wait(self, timeout_s: float) -> int | None:
        """Exit status of mpirun, None if it still runs after `timeout_s` seconds."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        """Everything that ranks and launcher printed so far, capped."""
        return self._output.text()

    def end(self) -> None:
        """End the launcher; ranks that still run go with their hosts."""
        left = len(self._ends) == len(self._placement)
        if self.running():
            if not left:
                self._process.terminate()
                self.wait(0.3)
            if self.running():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        # Its agents keep the stream open until the hosts' daemons have noticed.
        self._output.wait(0 if left else 1.0)
        shutil.rmtree(self._session, ignore_errors=True)
