"""What each running cluster made outside its own namespaces, so that leftovers can be removed.

Everything inside an enclosure (hosts, links, qdiscs, processes) is ended by the kernel when its
first process dies. Control groups and scratch folders are not: each is written here before it is
made. An entry whose owner is gone is cleaned by the next command; nothing else is ever touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path


def state_folder() -> Path:
    """Folder of the ledger: `$DISTLAB_STATE`, else the XDG state folder."""
    named = os.environ.get("DISTLAB_STATE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "distlab"


@dataclass
class Ledger:
    """The list of one owner. Paths are recorded before they are created.

    The owner holds a lock on a file beside the list. The kernel gives it up with the owner's last
    process, whichever way that ends, and in whatever PID namespace it is seen from.
    """

    path: Path
    folders: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    lock: int | None = None

    @property
    def name(self) -> str:
        """Unique among all ledgers of this machine's user."""
        return self.path.stem

    @classmethod
    def open(cls) -> Ledger:
        """Start a ledger that the calling process and its forks own."""
        folder = state_folder() / "ledger"
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = folder / f"{os.getpid()}-{time.monotonic_ns():x}.json"
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.with_suffix(".lock").exists():  # else a cleaner was faster than the lock
                break
            os.close(lock)
        ledger = cls(path, lock=lock)
        ledger._write()
        return ledger

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """Read a ledger. Raises OSError, ValueError, KeyError or TypeError for a damaged one."""
        entry = json.loads(path.read_text())
        return cls(path, list(entry["folders"]), list(entry["cgroups"]))

    def record_folder(self, folder: str) -> None:
        self.folders.append(folder)
        self._write()

    def record_cgroup(self, cgroup: str) -> None:
        self.cgroups.append(cgroup)
        self._write()

    def close(self) -> None:
        """Remove everything recorded, then the ledger itself."""
        for cgroup in reversed(self.cgroups):
            remove_cgroup(Path(cgroup))
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _write(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"folders": self.folders, "cgroups": self.cgroups}))
        partial.replace(self.path)


def remove_cgroup(cgroup: Path) -> None:
    """End whatever still runs in a control group of ours and remove it with its children."""
    if not cgroup.exists():
        return
    for child in [p for p in cgroup.iterdir() if p.is_dir()]:
        remove_cgroup(child)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            pids = (cgroup / "cgroup.procs").read_text().split()
            for pid in set(pids) - {"0"}:  # 0 stands for a process of another namespace
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            cgroup.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def clean_leftovers() -> list[str]:
    """Remove what owners that no longer run left behind; return what was removed."""
    removed: list[str] = []
    folder = state_folder() / "ledger"
    if not folder.is_dir():
        return removed
    for lock_path in sorted(folder.glob("*.lock")):
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue  # its owner runs
        path = lock_path.with_suffix(".json")
        try:
            ledger = Ledger.load(path)
        except (OSError, ValueError, KeyError, TypeError):
            ledger = Ledger(path)
        removed += [*ledger.folders, *ledger.cgroups]
        path.with_suffix(".partial").unlink(missing_ok=True)
        ledger.close()
        os.close(lock)
    return removed
