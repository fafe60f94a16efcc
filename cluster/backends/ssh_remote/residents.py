"""Run programs as processes of an ssh host, and find and end every one of them.

    residents.py shell ROOT HEX      run a shell command, given as hexadecimal UTF-8
    residents.py run ROOT NUMBER     run the command that the agent wrote down under this number

ROOT is the host's scratch folder; its base name marks the processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

TOKEN = "DISTLAB_HOST_TOKEN"
COMMANDS = "commands"
_END_TIMEOUT_S = 3.0
_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")


def processes_of(root: Path) -> list[int]:
    """Pids of everything started for `root`, told by its token, its control group, its parent."""
    token = f"{TOKEN}={root.name}".encode()
    found: set[int] = set()
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            parents[int(entry.name)] = int(parent)
            if token in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    for folder in cgroups_of(root):
        with contextlib.suppress(OSError):
            members = (folder / "cgroup.procs").read_text().split()
            found |= {int(word) for word in members} & parents.keys()
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return sorted(found - {os.getpid()})


def signal_all(root: Path, number: int) -> None:
    """Send a signal to every process of `root`."""
    for pid in processes_of(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(root: Path) -> list[int]:
    """End every process of `root`; return those that would not end."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while (left := processes_of(root)) and time.monotonic() < deadline:
        signal_all(root, signal.SIGKILL)
        time.sleep(0.005)
    return left


def cgroups_of(root: Path) -> list[Path]:
    """Control groups of `root`, where there are any."""
    return [place for place in (_V2 / root.name, _V1 / root.name) if place.is_dir()]


def make_cgroup(root: Path) -> bool:
    """Make a control group for CPU quotas; say whether this user may."""
    unified = (_V2 / "cgroup.controllers").exists()
    parent = _V2 if unified else _V1
    if os.geteuid() != 0 or not parent.is_dir():
        return False
    try:
        if unified:
            (_V2 / "cgroup.subtree_control").write_text("+cpu")
        (parent / root.name).mkdir()
    except OSError:
        return False
    return True


def remove(root: Path) -> None:
    """End what runs for `root` and remove its control groups and its folder."""
    end_all(root)
    for folder in cgroups_of(root):
        for _ in range(100):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.01)
    shutil.rmtree(root, ignore_errors=True)


def run(root: Path, command: list[str], environment: dict[str, str]) -> int:
    """Run a command as a process of the host; end it when the other side hangs up.

    Returns its exit status, 128 and the number of the signal that ended it.
    """
    child = os.fork()
    if child == 0:
        _become(root, command, environment)
    poller, ended = select.poll(), os.pidfd_open(child)
    poller.register(ended, select.POLLIN)
    poller.register(1, 0)  # no events asked for: only a hang-up or an error is told
    if all(descriptor != ended for descriptor, _ in poller.poll()):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _become(root: Path, command: list[str], environment: dict[str, str]) -> None:
    try:
        os.setsid()
        for folder in cgroups_of(root):
            (folder / "cgroup.procs").write_text("0")
        os.chdir(root / "tmp")
        own = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(root / "tmp"),
            **environment,
            TOKEN: root.name,
        }
        os.execvpe(command[0], command, {**os.environ, **own})
    except BaseException as error:
        os.write(2, f"distlab: {command[0]} cannot be run: {error}\n".encode())
    os._exit(127)


def main(arguments: list[str]) -> int:
    """Do what the command line says; see the module's description."""
    kind, root, what = arguments[0], Path(arguments[1]), arguments[2]
    if kind == "shell":
        return run(root, ["/bin/sh", "-c", bytes.fromhex(what).decode()], {})
    path = root / COMMANDS / what
    wanted = json.loads(path.read_text())
    path.unlink()
    return run(root, wanted["command"], wanted["environment"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
