"""The program of the warm parent: import modules once, then fork ranks into hosts on request.

    warm_server.py DESCRIPTOR MODULE ...

It speaks JSON lines over the unix socket DESCRIPTOR; each request brings three descriptors:
stdout, stderr, and the socket on which this one rank is reported. It stays single-threaded, since
a process with threads may not join a user namespace and must not fork, and it computes nothing:
a matrix product before the fork hangs every child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # run under -I, where the package is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster import linux
from cluster.enter import HostRecord, become_resident, lock_down
from cluster.launchers.rank_forker import RankForker
from cluster.launchers.rank_program import run_as_main
from cluster.seccomp import build_filter

_REPOSITORY = str(Path(__file__).resolve().parents[2])
if __name__ == "__main__":
    sys.path.remove(_REPOSITORY)

LONGEST_MESSAGE = 2**20
_STORE_UID = 800_999
_STORE_DATA_BYTES = 512 * 2**20


def _send(channel: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        channel.sendall(json.dumps(message).encode() + b"\n")


def _preload(modules: Sequence[str]) -> dict[str, object]:
    started = time.monotonic()
    # A repository's own modules are imported from it, and it is no place for a rank to look in.
    sys.path.append(_REPOSITORY)
    for name in modules:
        if name == "mpi4py.MPI":
            settings: Any = importlib.import_module("mpi4py.rc")
            settings.initialize = False  # each rank starts MPI itself
        importlib.import_module(name)
    sys.path.remove(_REPOSITORY)
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1:
        raise RuntimeError(f"the imports started {threads - 1} threads; forking is not safe")
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that holds an object header
    return {"ready": True, "import_s": time.monotonic() - started}


def serve(channel: socket.socket, modules: Sequence[str]) -> None:
    """Answer requests until the other end closes."""
    try:
        report = _preload(modules)
    except BaseException as error:
        _send(channel, error=f"{type(error).__name__}: {error}")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies: each waiter reports by itself
    _send(channel, **report)
    server = os.getpid()
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(channel, LONGEST_MESSAGE, 3)
        if not data:
            return
        if os.fork() == 0:
            channel.close()
            _wait_for_one(json.loads(data), descriptors, server)
        for descriptor in descriptors:
            os.close(descriptor)


def _wait_for_one(request: dict[str, Any], descriptors: list[int], server: int) -> NoReturn:
    """Fork the wanted process, report its pid and its end. Runs in a child made for it."""
    stdout, stderr, report = descriptors
    channel = socket.socket(fileno=report)
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        record = _record(request)
        if record is not None:
            become_resident(record)
        # Only now: entering a user namespace clears it.
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(0)  # the server died before the line above
        ready_read, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_rank(request, record, (stdout, stderr), ready_write, channel)
        os.close(ready_write)
        obstacle = _read_all(ready_read)
        if obstacle:
            os.waitpid(pid, 0)
            _send(channel, error=obstacle)
        else:
            _send(channel, pid=pid)
            _send(channel, exit=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    except BaseException as error:
        _send(channel, error=f"{type(error).__name__}: {error}")
    os._exit(0)


def _record(request: Mapping[str, Any]) -> HostRecord | None:
    entry = request["host"]
    if entry is None:
        return None
    return HostRecord(**{**entry, "cgroup_folders": tuple(entry["cgroup_folders"])})


def _read_all(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read().decode(errors="replace")


def _become_rank(
    request: Mapping[str, Any],
    record: HostRecord | None,
    outputs: tuple[int, int],
    ready: int,
    channel: socket.socket,
) -> NoReturn:
    """Take the rank's place on its host and run its program. `ready` closes when that begins."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (outputs[0], 1), (outputs[1], 2)):
            os.dup2(source, target)
        if record is None:
            _serve_store(request["store"], channel, ready)
        lock_down(record)
        # Only now: changing credentials resets both. A program that was started the usual way
        # can read its own /proc entries, so this one must.
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        os.chdir("/tmp")
        channel.detach()  # an object that closed its descriptor late would close one of the rank's
        os.dup2(ready, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    except BaseException as error:
        os.write(ready, f"{type(error).__name__}: {error}".encode())
        os._exit(127)
    if request["program"] is None:
        forker = RankForker()
        os.close(3)
        forker.serve()
    os.close(3)
    run_as_main(
        request["program"], request["arguments"], request["environment"], request["search_path"]
    )


def _serve_store(wanted: Mapping[str, Any], channel: socket.socket, ready: int) -> NoReturn:
    """Hold the rendezvous store of a job on the head, with no rights beyond its socket.

    Ranks send it what they like, so it is fenced: an account of its own where there are several,
    no capabilities, the hosts' system-call filter, and a limit on its memory.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((wanted["address"], 0), backlog=1024)
    port = listener.getsockname()[1]
    if Path("/proc/self/uid_map").read_text().split()[2] != "1":
        os.setgroups([])
        os.setresgid(_STORE_UID, _STORE_UID, _STORE_UID)
        os.setresuid(_STORE_UID, _STORE_UID, _STORE_UID)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    most = used + _STORE_DATA_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    linux.install_seccomp(build_filter())
    store = TCPStore(
        wanted["address"],
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    _send(channel, port=port)
    os.close(ready)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while store is not None:  # every signal ends the process, none returns here
        signal.pause()
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Serve on the socket whose descriptor is `arguments[0]`; the rest are modules to import."""
    with socket.socket(fileno=int(arguments[0])) as channel:
        serve(channel, arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
