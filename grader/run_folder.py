"""Where a grading leaves its files: one folder a run, and a link to the newest."""

from __future__ import annotations

import contextlib
import datetime
import os
from dataclasses import dataclass
from pathlib import Path

_NEEDED_BYTES = 32 * 2**20


class NoSpace(Exception):
    """The disk that results go to is full: one sentence for the user."""


@dataclass(frozen=True)
class RunFolder:
    """result.json, report.html, junit.xml, trace.json (Perfetto) of one grading."""

    path: Path

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def junit(self) -> Path:
        return self.path / "junit.xml"

    @property
    def trace(self) -> Path:
        return self.path / "trace.json"


def runs_folder() -> Path:
    """`$DISTLAB_RUNS`, else `runs` in the current folder."""
    return Path(os.environ.get("DISTLAB_RUNS") or "runs").absolute()


def require_room(folder: Path, otherwise: str) -> None:
    """Raise NoSpace when the disk of `folder` has no room for the results of a grading.

    otherwise: what can be done but freeing space.
    """
    status = os.statvfs(folder)
    if status.f_bavail * status.f_frsize < _NEEDED_BYTES:
        raise NoSpace(f"the disk that holds {folder} is full; free 32 MiB, or {otherwise}")


def new_run(label: str) -> RunFolder:
    """Make the folder of a new run. Raises NoSpace when its disk has no room for the results."""
    parent = runs_folder()
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        require_room(parent, "set DISTLAB_RUNS to another folder")
        for attempt in range(100):
            suffix = f"-{attempt}" if attempt else ""
            path = parent / f"{now}-{label}{suffix}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            _point_latest(parent, path)
            return RunFolder(path)
    except OSError as error:
        raise NoSpace(
            f"results cannot be written to {parent}: {error.strerror}; set DISTLAB_RUNS to a "
            "folder of yours"
        ) from None
    raise NoSpace(f"{parent} holds too many runs of this second; try again")


def find_run(name: str | None) -> RunFolder | None:
    """The run called `name` (a folder, or its name below the runs folder), else the newest."""
    if name is not None:
        for path in (Path(name), runs_folder() / name):
            if (path / "result.json").exists():
                return RunFolder(path)
        return None
    latest = runs_folder() / "latest"
    return RunFolder(latest.resolve()) if (latest / "result.json").exists() else None


def _point_latest(parent: Path, path: Path) -> None:
    link, partial = parent / "latest", parent / f".latest-{os.getpid()}"
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
        partial.symlink_to(path.name)
        partial.replace(link)
