"""A process on a host that forks ranks from itself for mpirun's daemon there.

The daemon starts a stand-in (`stand_in.py`) as it would start a rank. The stand-in hands its
arguments, environment and standard streams over, and ends as the rank forked for it does. All of
this happens within one host and with the rights of a rank.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from typing import NoReturn

from cluster import linux
from cluster.launchers.rank_program import run_as_main
from cluster.launchers.stand_in import ADDRESS

_LONGEST_REQUEST = 2**20
_REQUEST_TIMEOUT_S = 5.0


class RankForker:
    """Serves stand-ins. A request: the number of arguments, the program and its arguments, and
    `NAME=value` for each variable, joined by zero bytes; with it come descriptors 0 to 2."""

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(ADDRESS)
        self._listener.listen(64)
        self._stand_ins: dict[int, socket.socket] = {}  # by the rank's process id
        self._woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        """Fork ranks until this process is killed."""
        while True:
            watched: list[socket.socket | int] = [
                self._listener,
                self._woken,
                *self._stand_ins.values(),
            ]
            readable = select.select(watched, [], [])[0]
            if self._woken in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._report_ends()
            for pid, stand_in in list(self._stand_ins.items()):
                if stand_in in readable:  # it was killed: so is its rank, with what that started
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                    self._stand_ins.pop(pid).close()
            if self._listener in readable:
                with contextlib.suppress(OSError, ValueError):
                    self._fork_for(self._listener.accept()[0])

    def _report_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                stand_in = self._stand_ins.pop(ended[0], None)
                if stand_in is not None:
                    status = os.waitstatus_to_exitcode(ended[1])
                    with contextlib.suppress(OSError):
                        stand_in.send(b"%d" % status)
                    stand_in.close()

    def _fork_for(self, stand_in: socket.socket) -> None:
        stand_in.settimeout(_REQUEST_TIMEOUT_S)
        data, streams, _flags, _address = socket.recv_fds(stand_in, _LONGEST_REQUEST, 3)
        try:
            count, *words = data.split(b"\0")
            if len(streams) != 3:
                raise ValueError("a request brings three descriptors")
            command, variables = words[: int(count)], words[int(count) :]
            pid = os.fork()
            if pid == 0:
                _become_rank(streams, command, variables)
        except BaseException:
            stand_in.close()
            raise
        finally:
            for descriptor in streams:
                os.close(descriptor)
        self._stand_ins[pid] = stand_in


def _become_rank(streams: list[int], command: list[bytes], variables: list[bytes]) -> NoReturn:
    try:
        os.setsid()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for source, target in zip(streams, range(3), strict=True):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        program, *arguments = map(os.fsdecode, command)
        pairs = (os.fsdecode(variable).partition("=") for variable in variables)
        environment = {name: value for name, _, value in pairs}
    except BaseException as error:
        os.write(2, f"distlab: a rank could not be forked: {error}\n".encode())
        os._exit(127)
    run_as_main(program, arguments, environment, ())
