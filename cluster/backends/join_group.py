"""Process groups of plain-process hosts: run a program as the head of one, and find them again.

    join_group.py FOLDER COMMAND ...
    join_group.py --watch CLUSTER_FOLDER     until standard input ends, then end all groups in it

Each group is a file of FOLDER, named after its number and holding the start of its first process,
so that a number which the system gave to somebody else meanwhile is not taken for ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

GROUPS = "groups"


def start_of(pid: int) -> str | None:
    """When process `pid` started, in words that only serve comparison; None if it has gone."""
    if sys.platform == "linux":
        fields = _fields(pid)
        return fields[19] if fields else None
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def _fields(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on; empty if it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def processes() -> Iterator[tuple[int, int]]:
    """Every process of this machine that has not ended, with its group."""
    if sys.platform == "linux":  # a small system has no ps
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        rows = [(pid, fields[2], fields[0]) for pid in numbers if (fields := _fields(pid))]
    else:
        command = ["ps", "-A", "-o", "pid=,pgid=,stat="]
        listing = subprocess.run(command, capture_output=True, text=True, check=True)
        words = (line.split() for line in listing.stdout.splitlines())
        rows = [(int(pid), group, state) for pid, group, state in words]
    for pid, group, state in rows:
        if state[0] != "Z":
            yield pid, int(group)


def live_groups(folder: Path) -> Iterator[int]:
    """Numbers of the groups in `folder` that still have a process."""
    for entry in folder.iterdir():
        if not entry.name.isdigit():
            continue
        group = int(entry.name)
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            entry.unlink(missing_ok=True)
            continue
        except PermissionError:
            continue  # it has become another user's
        # While a group has members, no new process gets its number: a first process with another
        # start means that the group has died out and the number is somebody else's.
        if start_of(group) in (None, entry.read_text()):
            yield group


def watch(cluster_folder: Path) -> None:
    """Wait for the end of standard input, which means that the cluster's owner died; clean up."""
    sys.stdin.read()
    for folder in cluster_folder.glob(f"*/{GROUPS}"):
        for group in live_groups(folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
    shutil.rmtree(cluster_folder, ignore_errors=True)


def main(arguments: list[str]) -> None:
    """Become the head of a group recorded in folder `arguments[0]`, then run the rest."""
    if arguments[0] == "--watch":
        watch(Path(arguments[1]))
        return
    folder, command = Path(arguments[0]), arguments[1:]
    if os.getpgrp() != os.getpid():
        os.setsid()
    partial = folder / f"{os.getpid()}.partial"
    partial.write_text(start_of(os.getpid()) or "")
    partial.replace(folder / str(os.getpid()))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"distlab: {command[0]} cannot be run: {error}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
