"""A process that has imported what ranks need, and forks them from itself into hosts.

Importing torch takes seconds and 300 MB a rank, numpy and mpi4py a quarter of a second; a fork
takes 10 ms and shares both. The parent starts while other work goes on, holds nothing secret, and
serves any number of jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster.enter import HostRecord
from cluster.interface import ClusterError, Host
from cluster.launchers.program import Program

_SERVER = Path(__file__).with_name("warm_server.py")
_LONGEST_REQUEST = 2**20
_START_TIMEOUT_S = 20.0
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    # An import that looks up the user's name would make glibc keep this machine's nsswitch.conf
    # for the ranks, whose look-ups would then wait for a DNS server that no host has.
    "LOGNAME": "learner",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


class ForkedProcess:
    """One process forked from the warm parent.

    Statuses are those of `subprocess.Popen`: the exit code, or minus the signal's number.
    """

    def __init__(self, name: str, channel: socket.socket) -> None:
        self._name, self._channel, self._unread = name, channel, b""
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Process id as seen in the enclosure. Raises ClusterError if the start failed."""
        self._await_start()
        assert self._pid is not None
        return self._pid

    def poll(self) -> int | None:
        """Exit status, or None while it runs. Raises ClusterError if it never started."""
        if self._status is None:
            self._read(0)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait at most `timeout` seconds for the end. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
            self._read(left)
        return self._status

    def fileno(self) -> int:
        """Descriptor that becomes readable when there is news for `poll`; -1 after the end."""
        return self._channel.fileno()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        self._await_start()
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End the process at once. What it started is ended with its host."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Release the descriptors. Does not end the process."""
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._pid is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ClusterError(f"{self._name} did not start within {_START_TIMEOUT_S:g} s")
            self._read(left)

    def _read(self, timeout: float | None) -> None:
        if not select.select([self._channel], [], [], timeout)[0]:
            return
        data = self._channel.recv(65536)
        if not data:
            self.close()
            if self._pid is None:
                raise ClusterError(f"{self._name}: the warm parent died while starting it")
            self._status = -signal.SIGKILL  # whoever waited for it was killed, and it as well
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._note(json.loads(line))

    def _note(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            self.close()
            raise ClusterError(f"{self._name} could not be started: {message['error']}")
        self._note_more(message)
        if "pid" in message:
            self._pid = int(message["pid"])
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._pid)
        if "exit" in message:
            self._status = int(message["exit"])
            self.close()

    def _note_more(self, message: Mapping[str, Any]) -> None:
        """What only some programs report."""


class ForkedStore(ForkedProcess):
    """A rendezvous store forked from the warm parent."""

    _port = 0

    @property
    def port(self) -> int:
        """TCP port it listens on. Raises ClusterError if it could not start."""
        self._await_start()
        return self._port

    def _note_more(self, message: Mapping[str, Any]) -> None:
        self._port = int(message.get("port", self._port))


class WarmParent:
    """The client side. A context manager: `start`, then `wait_ready` when it is needed.

    Leaving it ends the parent and every process forked from it.
    """

    def __init__(self, preloaded: Sequence[str]) -> None:
        """preloaded: names of the modules to import, in this order."""
        self._preloaded = tuple(preloaded)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._ready = False
        self.import_s: float | None = None

    def start(self) -> None:
        """Begin to import in the background; returns at once. Does nothing if begun."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-X", "utf8", str(_SERVER), str(theirs.fileno())]
            command += self._preloaded
            self._process = subprocess.Popen(
                command,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = ours

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until ranks can be forked. Raises ClusterError when an import fails."""
        self.start()
        if self._ready:
            return
        assert self._channel is not None and self._process is not None
        if not select.select([self._channel], [], [], timeout_s)[0]:
            what = self._preloaded[-1]
            raise ClusterError(f"importing {what} took more than {timeout_s:g} s; run again")
        data = self._channel.recv(_LONGEST_REQUEST)
        message = json.loads(data) if data else {}
        if "ready" not in message:
            reason = message.get("error") or f"it ended with status {self._process.wait()}"
            raise ClusterError(f"the process that ranks are forked from failed: {reason}")
        self.import_s = float(message["import_s"])
        self._ready = True

    def start_rank(
        self, host: Host, program: Program, *, stdout: int, stderr: int
    ) -> ForkedProcess:
        """Start `program` on `host`, with standard input from /dev/null.

        The host must be an emulated one of this enclosure. The environment is the host's own
        with that of the program on top. Raises ClusterError.
        """
        record = _record_of(host)
        request = {
            "host": asdict(record),
            "program": program.path,
            "arguments": list(program.arguments),
            "environment": {**record.environment, **program.environment},
            "search_path": list(program.search_path),
        }
        channel = self._ask(request, stdout, stderr)
        return ForkedProcess(f"{program.path} on {host.name}", channel)

    def start_forker(self, host: Host) -> ForkedProcess:
        """Start the host's rank forker, which serves what runs there. Raises ClusterError."""
        with open(os.devnull, "wb") as null:
            request = {"host": asdict(_record_of(host)), "program": None}
            outputs = null.fileno(), null.fileno()
            return ForkedProcess(f"rank forker on {host.name}", self._ask(request, *outputs))

    def start_store(self, address: str) -> ForkedStore:
        """Start a rendezvous store that listens on `address` of the enclosure, any free port."""
        with open(os.devnull, "wb") as null:
            request = {"host": None, "store": {"address": address}}
            outputs = null.fileno(), null.fileno()
            return ForkedStore(f"store on {address}", self._ask(request, *outputs))

    def close(self) -> None:
        """End the parent. Its children die with it."""
        if self._process is None:
            return
        assert self._channel is not None
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._process, self._ready = None, False

    def _ask(self, request: Mapping[str, object], stdout: int, stderr: int) -> socket.socket:
        self.wait_ready()
        assert self._channel is not None
        message = json.dumps(request).encode()
        if len(message) > _LONGEST_REQUEST:
            raise ClusterError("a rank's arguments and environment exceed 1 MiB")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._channel, [message], [stdout, stderr, theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ClusterError(f"the warm parent is gone: {error}") from error
        return ours

    def __enter__(self) -> WarmParent:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def _record_of(host: Host) -> HostRecord:
    record = getattr(host, "record", None)
    if not isinstance(record, HostRecord):
        raise ClusterError(f"{host.name} is no emulated host: no rank can be forked into it")
    if not host.alive():
        raise ClusterError(f"{host.name} is down")
    return record
