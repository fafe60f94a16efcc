"""A private set of namespaces in which a cluster is built, and which takes everything with it.

The calling process stays outside as a waiter. Its child becomes process 1 of a new PID namespace
with its own network and mounts; the program goes on in a grandchild. When any of the three is
killed, however rudely, the kernel ends every process inside, and with the last process go the
network namespaces, links and qdiscs. As root no user namespace is made, so control groups keep
working; an ordinary user becomes root of a user namespace of their own.

    python -m cluster.enclosure -- COMMAND ...
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
from pathlib import Path

from cluster import linux
from cluster.ledger import Ledger, clean_leftovers

INSIDE = "DISTLAB_ENCLOSURE"
_LEDGER = "DISTLAB_LEDGER"
_PARENT_GONE = 137
_SYSCTL = Path("/proc/sys")
_CONTAINER = "this container may not make namespaces; start it with `--privileged`"


class EnclosureError(Exception):
    """The machine does not allow the namespaces that an emulated cluster needs."""


def inside() -> bool:
    """Whether the calling process already runs in an enclosure."""
    return os.environ.get(INSIDE) == "1"


@functools.cache
def ledger() -> Ledger:
    """The ledger of the enclosure that the caller runs in; one process writes it."""
    return Ledger.load(Path(os.environ[_LEDGER]))


def obstacle() -> str | None:
    """Why an enclosure cannot be made here, with the command that mends it; None if it can."""
    if sys.platform != "linux":
        return "emulated hosts need Linux; use `--backend local`, or run inside a Linux machine"
    pid = os.fork()
    if pid == 0:
        try:
            _unshare()
        except (OSError, EnclosureError):
            os._exit(1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        return None
    return _CONTAINER if os.geteuid() == 0 else user_namespace_obstacle()


def user_namespace_obstacle() -> str:
    """Why a process without rights gets no user namespace, with the command that mends it.

    That is an ordinary user's, and each host's bubblewrap even where root starts it.
    """
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids user namespaces to ordinary users; allow them with "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    wanted = []
    if _setting("kernel/unprivileged_userns_clone") == "0":
        wanted.append("kernel.unprivileged_userns_clone=1")
    if _setting("user/max_user_namespaces") == "0":
        wanted.append("user.max_user_namespaces=15000")
    if wanted:
        return (
            "user namespaces are switched off for ordinary users; allow them with "
            f"`sudo sysctl -w {' '.join(wanted)}`"
        )
    return _CONTAINER


def _setting(name: str) -> str | None:
    """A setting of the kernel's, None where it has no such one."""
    try:
        return (_SYSCTL / name).read_text().strip()
    except OSError:
        return None


def _unshare() -> None:
    flags = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWPID
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        linux.unshare(flags)
        return
    linux.unshare(flags | linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _prepare_mounts() -> None:
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV)
    linux.mount("tmpfs", "/run", "tmpfs", linux.MS_NOSUID, "mode=755")


def enter() -> None:
    """Go on inside a new enclosure. Returns only in the innermost process.

    Call it before threads are started or numpy is imported. Raises EnclosureError when the
    machine does not allow it.
    """
    if inside():
        return
    clean_leftovers()
    record = Ledger.open()
    alive_read, alive_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        _unshare()
    except OSError as error:
        record.close()
        raise EnclosureError(obstacle() or str(error)) from error
    first = os.fork()
    if first:
        os.close(alive_read)
        _wait_outside(first, record)
    os.close(alive_write)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([alive_read], [], [], 0)[0]:
        os._exit(_PARENT_GONE)  # the waiter died before the line above
    _prepare_mounts()
    program = os.fork()
    if program:
        _wait_as_first_process(program)
    os.close(alive_read)
    os.environ[INSIDE] = "1"
    os.environ[_LEDGER] = str(record.path)
    linux.bring_up_loopback()


def _wait_outside(first: int, record: Ledger) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(first, received))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the program as well
    status = _reap(first)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        written = Ledger.load(record.path)  # by the program inside
        record.folders, record.cgroups = written.folders, written.cgroups
    record.close()
    os._exit(status)


def _wait_as_first_process(program: int) -> None:
    def forward(received: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, received)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os._exit(_reap(program))


def _reap(wanted: int) -> int:
    """Collect every child that ends; return the shell-style status of `wanted`."""
    while True:
        try:
            pid, status = os.wait()
        except InterruptedError:
            continue
        except ChildProcessError:
            return _PARENT_GONE
        if pid == wanted:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Become a command inside an enclosure: the body of `python -m cluster.enclosure`."""
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        print("usage: python -m cluster.enclosure -- COMMAND ...", file=sys.stderr)
        return 2
    try:
        enter()
    except EnclosureError as error:
        print(f"distlab: {error}", file=sys.stderr)
        return 3
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        print(f"distlab: {arguments[0]} cannot be run: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
