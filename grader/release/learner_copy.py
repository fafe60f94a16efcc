"""Make a learner's copy: written beside its place, scanned, and moved there when it is clean."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader.package import Problem
from grader.release.contents import Checkout, ReleaseError, TrackedFile, run_git
from grader.release.private_half import PrivateHalf
from grader.release.readme import dangling_links, for_learners
from grader.release.scan import Finding, scan

_NOBODY = {
    "GIT_AUTHOR_NAME": "distlab",
    "GIT_AUTHOR_EMAIL": "distlab@localhost",
    "GIT_COMMITTER_NAME": "distlab",
    "GIT_COMMITTER_EMAIL": "distlab@localhost",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


@dataclass(frozen=True)
class Copy:
    """A copy that was made. digest: of all paths, modes and contents; the same commit and problems
    give the same. commit: the one that --git made, or None."""

    files: int
    digest: str
    commit: str | None


class PrivateHalfInside(ReleaseError):
    """The copy was not made, because something private is in it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("private contents are in it")
        self.findings = tuple(findings)


def make_copy(
    checkout: Checkout, problems: Sequence[Problem], target: Path, *, as_repository: bool
) -> Copy:
    """Write a learner's copy of `checkout` with `problems` to `target`, a new or an empty folder.

    Raises ReleaseError and leaves nothing behind.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ReleaseError(f"{target} is not a folder; name a new one with --to")
    if target.is_dir() and any(target.iterdir()):
        raise ReleaseError(f"{target} is not empty, and nothing is overwritten; name a new folder")
    files = _contents(checkout, problems)
    private = PrivateHalf(checkout.private(), checkout.released([p.name for p in problems]))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _write(files, place, checkout.time)
            commit = _commit(place, checkout.time) if as_repository else None
            if findings := scan(place, private):
                raise PrivateHalfInside(findings)
            place.chmod(0o755)
            place.rename(target)
        finally:
            if place.exists():
                shutil.rmtree(place)
    except OSError as error:
        raise ReleaseError(f"{target} cannot be written: {error.strerror}") from None
    return Copy(len(files), _digest(files), commit)


def _contents(checkout: Checkout, problems: Sequence[Problem]) -> tuple[TrackedFile, ...]:
    files = [
        replace(file, content=for_learners(file.content.decode(), problems).encode())
        if file.path == "README.md"
        else file
        for file in checkout.released([problem.name for problem in problems])
    ]
    there = {file.path for file in files}
    for file in files:
        if file.path.endswith(".md"):
            for link in dangling_links(file.path, file.content.decode(), there):
                raise ReleaseError(
                    f"{file.path} has a link to {link}, which learners do not get; cut it, or "
                    "mark its paragraph `for instructors`"
                )
    return tuple(sorted(files, key=lambda file: file.path))


def _write(files: Sequence[TrackedFile], place: Path, time: int) -> None:
    for file in files:
        path = place / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
        os.utime(path, (time, time))
    for folder in {path.parent for path in place.rglob("*")}:
        if folder != place:
            folder.chmod(0o755)


def _commit(place: Path, time: int) -> str:
    """Make the copy a repository with one commit, which nobody's settings have a part in."""
    when = {"GIT_AUTHOR_DATE": f"{time} +0000", "GIT_COMMITTER_DATE": f"{time} +0000"}
    for arguments in (
        ["init", "--quiet", "--template=", "--initial-branch=main"],
        ["add", "--force", "--all"],
        ["commit", "--quiet", "--no-verify", "--message=distlab, a learner's copy"],
    ):
        run_git(place, *arguments, settings={**_NOBODY, **when})
    return run_git(place, "rev-parse", "HEAD").decode().strip()


def _digest(files: Sequence[TrackedFile]) -> str:
    whole = hashlib.sha256()
    for file in files:
        content = hashlib.sha256(file.content).hexdigest()
        whole.update(f"{file.path}\0{file.executable:d}\0{content}\n".encode())
    return whole.hexdigest()
