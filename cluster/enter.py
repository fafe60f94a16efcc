"""Run a program on an emulated host, with none of the caller's rights: what ssh is to a server.

    enter.py [--record PATH] HOST COMMAND ...

The launcher's remote agent and `distlab cluster exec` both come through here. The process joins
the host's control groups and namespaces, gives up every capability, sets no_new_privs and the
system-call filter, and only then starts the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":  # run under -I, where the package is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import linux

RECORDS = Path("/run/distlab/hosts")
_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWIPC
)
INNER_UID = 1000


@dataclass(frozen=True)
class HostRecord:
    """What must be known to enter a host. pid: its first process, seen from the enclosure."""

    name: str
    pid: int
    cgroup_folders: tuple[str, ...]
    environment: dict[str, str]
    seccomp_hex: str
    open_files: int = 1024

    def save(self) -> None:
        folder = RECORDS / self.name
        partial = folder / "record.partial"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / "record.json")

    @classmethod
    def load(cls, name: str) -> HostRecord:
        """The record of host `name`. Raises ValueError for what cannot be a host's name.

        Ranks can make the launcher ask for any name. One with a slash would lead to a file that
        they wrote themselves.
        """
        if not (name.isascii() and name.replace("-", "").isalnum()):
            raise ValueError(f"{name!r} is not the name of a host")
        entry = json.loads((RECORDS / name / "record.json").read_text())
        return cls(**{**entry, "cgroup_folders": tuple(entry["cgroup_folders"])})


def become_resident(record: HostRecord) -> None:
    """Turn the calling process into one that forks into the host. Its children are residents."""
    for folder in record.cgroup_folders:
        (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
    with contextlib.suppress(PermissionError):  # an ordinary user may not, and has none to drop
        os.setgroups([])
    descriptor = os.pidfd_open(record.pid)
    linux.setns(descriptor, _NAMESPACES)
    os.close(descriptor)


def lock_down(record: HostRecord) -> None:
    """Give up all rights, as a process inside the host. Raises OSError if any step fails."""
    os.setresgid(INNER_UID, INNER_UID, INNER_UID)
    os.setresuid(INNER_UID, INNER_UID, INNER_UID)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (record.open_files, record.open_files))
    linux.install_seccomp(bytes.fromhex(record.seccomp_hex))


def fork_inside(record: HostRecord, body: Callable[[], None]) -> int:
    """Run `body` in a new, locked-down process on the host; return the waiting parent's child pid.

    Must be called in a process made for the purpose: it moves into the host's namespaces.
    """
    become_resident(record)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            lock_down(record)
            body()
        except BaseException as error:
            os.write(2, f"distlab: cannot start on {record.name}: {error}\n".encode())
        os._exit(127)
    return pid


def _exec(command: list[str], environment: Mapping[str, str]) -> None:
    os.chdir("/tmp")
    os.execvpe(command[0], command, dict(environment))


def main(arguments: list[str]) -> int:
    """Enter host `arguments[0]` and run the rest there; return its exit status."""
    extra: dict[str, str] = {}
    while arguments and arguments[0].startswith("--env="):
        name, _, value = arguments.pop(0)[len("--env=") :].partition("=")
        extra[name] = value
    shell = False
    if arguments and arguments[0] == "--shell":
        shell = True
        arguments.pop(0)
    name, command = arguments[0], arguments[1:]
    if shell:  # an ssh agent gets one or more words that the remote shell is to read
        command = ["/bin/sh", "-c", " ".join(command)]
    try:
        record = HostRecord.load(name)
        pid = fork_inside(record, lambda: _exec(command, {**record.environment, **extra}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"distlab: host {name} cannot be reached: {error}", file=sys.stderr)
        return 255

    def pass_on(received: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, received)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, pass_on)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
