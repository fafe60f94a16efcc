"""A cluster that stays up between commands: a server process in an enclosure of its own.

Clients speak one JSON object a connection over a Unix socket in the state folder, and pass their
standard streams along. The cluster goes when the server does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster import enclosure
from cluster.interface import ClusterError, ClusterSpec
from cluster.ledger import state_folder

_MESSAGE_LIMIT = 1 << 20
_START_TIMEOUT_S = 60


class PlaygroundError(Exception):
    """The playground cannot do what was asked: one sentence for the user."""


@dataclass(frozen=True)
class PlaygroundSpec:
    """hosts, slots: size of the cluster. files: folder shown to every host as /distlab/files.
    block_disk: see ClusterSpec."""

    hosts: int = 4
    slots: int = 1
    files: str | None = None
    block_disk: bool = False


def _socket_path() -> Path:
    return state_folder() / "playground.sock"


def is_up() -> bool:
    """Whether a playground answers."""
    try:
        call({"do": "status"})
    except PlaygroundError:
        return False
    return True


def up(spec: PlaygroundSpec) -> None:
    """Start the server and wait until its cluster is up. Raises PlaygroundError."""
    if is_up():
        raise PlaygroundError("a cluster is up already; `distlab cluster down` ends it")
    trouble = enclosure.obstacle()
    if trouble:
        raise PlaygroundError(trouble)
    state_folder().mkdir(parents=True, exist_ok=True)
    _socket_path().unlink(missing_ok=True)
    log = state_folder() / "playground.log"
    arguments = [json.dumps(asdict(spec))]
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "cluster.playground", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
            raise PlaygroundError(f"the cluster could not be started: {lines[-1]}")
        if _socket_path().exists() and is_up():
            return
        time.sleep(0.05)
    server.terminate()
    raise PlaygroundError(f"the cluster did not come up within {_START_TIMEOUT_S} s")


def call(request: dict[str, Any], streams: Sequence[int] = ()) -> dict[str, Any]:
    """Send one request, with file descriptors for its streams; return the answer.

    Raises PlaygroundError when no cluster is up or the server refuses.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(_socket_path()))
    except OSError:
        connection.close()
        raise PlaygroundError("no cluster is up; start one with `distlab cluster up`") from None
    with connection:
        content = json.dumps(request).encode()
        answer = b""
        with contextlib.suppress(ConnectionError):  # the server may leave before it has answered
            socket.send_fds(connection, [content + b"\n"], list(streams))
            while chunk := connection.recv(65536):
                answer += chunk
    if not answer:
        raise PlaygroundError("the cluster went away in mid-request; start it again")
    result: dict[str, Any] = json.loads(answer)
    if "error" in result:
        raise PlaygroundError(str(result["error"]))
    return result


class _Server:
    def __init__(self, spec: PlaygroundSpec) -> None:
        from cluster.backends.netns import NetnsBackend
        from cluster.faults.injector import Injector

        self._backend = NetnsBackend()
        files = {"files": Path(spec.files)} if spec.files else {}
        self._backend.prepare_network_faults()
        self._cluster = self._backend.cluster(
            ClusterSpec(
                spec.hosts,
                spec.slots,
                files=files,
                network_faults=True,
                block_disk=spec.block_disk,
            )
        )
        self._injector = Injector(self._cluster)
        self._stop = threading.Event()

    def serve(self) -> None:
        path = _socket_path()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        listener.settimeout(0.2)
        try:
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    connection.settimeout(None)
                    threading.Thread(target=self._answer, args=[connection], daemon=True).start()
        finally:
            path.unlink(missing_ok=True)
            self._cluster.close()
            self._backend.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            content, streams, _, _ = socket.recv_fds(connection, _MESSAGE_LIMIT, 3)
            try:
                while not content.endswith(b"\n"):
                    content += connection.recv(65536)
                answer = self._do(json.loads(content), streams)
            except (ClusterError, ValueError, KeyError) as error:
                answer = {"error": str(error)}
            finally:
                for stream in streams:
                    os.close(stream)
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(answer).encode())

    def _do(self, request: dict[str, Any], streams: Sequence[int]) -> dict[str, Any]:
        actions: dict[str, Callable[[], dict[str, Any]]] = {
            "status": self._status,
            "fault": lambda: self._fault(request["line"]),
            "heal": self._heal,
            "exec": lambda: self._exec(request, streams),
            "mpirun": lambda: self._mpirun(request, streams),
            "down": self._down,
        }
        return actions[request["do"]]()

    def _status(self) -> dict[str, Any]:
        hosts = []
        for host in self._cluster.hosts:
            traffic = host.data_bytes() if host.alive() else None
            hosts.append(
                {
                    "name": host.name,
                    "address": host.data_address,
                    "alive": host.alive(),
                    "processes": len(host.processes()),
                    "sent_bytes": traffic.sent_bytes if traffic else 0,
                    "received_bytes": traffic.received_bytes if traffic else 0,
                }
            )
        faults = [a.fault.text for a in self._injector.history() if a.end is None]
        return {"hosts": hosts, "faults": faults, "engine": self._backend.network_engine}

    def _fault(self, line: str) -> dict[str, Any]:
        from cluster.faults.injector import TimelineRun
        from cluster.faults.language import parse_fault

        fault = parse_fault(line, [host.name for host in self._cluster.hosts])
        if fault.start == 0 and fault.end is None:
            self._injector.apply(fault)
            return {"proof": self._injector.history()[-1].proof}

        def run() -> None:
            with TimelineRun(self._injector, [fault]):
                self._stop.wait(fault.end if fault.end is not None else fault.start + 3600)

        threading.Thread(target=run, daemon=True).start()
        return {"proof": "scheduled"}

    def _heal(self) -> dict[str, Any]:
        self._injector.heal()
        return {}

    def _exec(self, request: dict[str, Any], streams: Sequence[int]) -> dict[str, Any]:
        host = self._cluster.host(request["host"])
        if not host.alive():
            raise ClusterError(f"{host.name} is down")
        process = host.start(
            request["command"], stdin=streams[0], stdout=streams[1], stderr=streams[2]
        )
        return {"status": process.wait()}

    def _mpirun(self, request: dict[str, Any], streams: Sequence[int]) -> dict[str, Any]:
        from cluster.launchers.mpirun import launch

        command = list(request["command"])
        job = launch(self._cluster, lambda _host: command, int(request["ranks"]))
        status = job.wait(float(request["timeout"]))
        if status is None:
            job.end()
        with os.fdopen(os.dup(streams[1]), "wb") as out:
            out.write(job.output().encode())
        if status is None:
            raise ClusterError(f"the job was ended after {request['timeout']:g} s")
        return {"status": status}

    def _down(self) -> dict[str, Any]:
        self._stop.set()
        return {}


def main(arguments: Sequence[str]) -> int:
    """Run the server: the body of `python -m cluster.playground SPEC`."""
    spec = PlaygroundSpec(**json.loads(arguments[0]))
    try:
        enclosure.enter()
        server = _Server(spec)
    except (enclosure.EnclosureError, ClusterError, ValueError) as error:
        print(error, flush=True)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: server._down())
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
