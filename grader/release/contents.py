"""What a checkout tracks, and which part of that a learner's copy holds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.package import EXTRA_PUBLIC_FILES, PUBLIC_FILES

_RELEASED = (
    ".gitignore",
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "requirements.lock",
    "bootstrap/",
    "cluster/",
    "grader/",
    "tests/conftest.py",
    "tests/cluster/",
    "tests/grader/",
    "tests/packages/test_packages.py",
    "tests/setup/",
)
"""What goes into a copy, besides problems/: a path, or a folder with all that is in it. What is not
named stays behind: other tests need solutions/, or are about a class of learners."""

_STAYS_BEHIND = ("tests/setup/test_readme.py",)  # holds the whole README against the whole program

_PRIVATE = ("solutions/", "notebooks/", "tests/exploits/", "tests/oddities/submissions/")
"""What nobody else may see: `scan` looks for its contents."""

DEMO_PROBLEM = "p03_allreduce_mpi"


class ReleaseError(Exception):
    """No release can be made, or looked into: one sentence for the user."""


@dataclass(frozen=True)
class TrackedFile:
    """One file of a commit. path: below the checkout, with slashes."""

    path: str
    content: bytes
    executable: bool


@dataclass(frozen=True)
class Checkout:
    """A commit's files. time: of the commit, in seconds since 1970. untracked: files in the
    working tree that git neither tracks nor ignores."""

    commit: str
    time: int
    files: tuple[TrackedFile, ...]
    untracked: tuple[str, ...]

    def private(self) -> tuple[TrackedFile, ...]:
        return tuple(file for file in self.files if _is_private(file.path))

    def released(self, problems: Sequence[str]) -> tuple[TrackedFile, ...]:
        """The public part. problems: names of the problems' folders that go along."""
        return tuple(file for file in self.files if _is_released(file.path, problems))


def _is_private(path: str) -> bool:
    # The settings of a course are written from templates that are public.
    return path.startswith(_PRIVATE) and not path.endswith("/nbgrader_config.py")


def _is_released(path: str, problems: Sequence[str]) -> bool:
    folder, _, rest = path.partition("/")
    if folder == "problems":
        problem, _, name = rest.partition("/")
        return problem in problems and name in {*PUBLIC_FILES, *EXTRA_PUBLIC_FILES}
    if path in _STAYS_BEHIND:
        return False
    return any(path.startswith(p) if p.endswith("/") else path == p for p in _RELEASED)


def read_checkout(root: Path) -> Checkout:
    """The files of the commit that is checked out at `root`. Raises ReleaseError, also where the
    working tree differs from it: a release is made of what was committed."""
    if not (root / ".git").exists():
        raise ReleaseError(
            f"{root} is no git checkout; a release is made of what git tracks, so clone it"
        )
    status = run_git(root, "status", "--porcelain", "-z", "--untracked-files=all")
    changes = [entry for entry in status.decode(errors="replace").split("\0") if entry]
    changed = [entry[3:] for entry in changes if not entry.startswith("??")]
    if changed:
        raise ReleaseError(
            f"{changed[0]} differs from the commit; commit what you changed, or stash it, and "
            "run again"
        )
    commit = run_git(root, "rev-parse", "HEAD").decode().strip()
    time = int(run_git(root, "show", "-s", "--format=%ct", commit))
    untracked = tuple(entry[3:] for entry in changes if entry.startswith("??"))
    return Checkout(commit, time, _files_of(root, commit), untracked)


def _files_of(root: Path, commit: str) -> tuple[TrackedFile, ...]:
    listed = run_git(root, "ls-tree", "-r", "-z", commit).decode().split("\0")
    entries = []
    for line in filter(None, listed):
        kind, _, path = line.partition("\t")
        mode, _, name = kind.split(" ")
        if mode not in ("100644", "100755"):
            raise ReleaseError(f"{path} is a link or a submodule; a release holds plain files only")
        entries.append((path, name, mode == "100755"))
    contents = read_objects(root, [name for _, name, _ in entries])
    return tuple(
        TrackedFile(path, contents[name], executable) for path, name, executable in entries
    )


def read_objects(place: Path, names: Sequence[str], *options: str) -> dict[str, bytes]:
    """Contents of objects, by name, of the repository that git finds at `place` when given
    `options`. Raises ReleaseError."""
    asked = "".join(f"{name}\n" for name in names).encode()
    text = run_git(place, *options, "cat-file", "--batch", given=asked)
    found, at = {}, 0
    for name in names:
        end = text.index(b"\n", at)
        size = int(text[at:end].split()[-1])
        found[name] = text[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def run_git(
    place: Path, *arguments: str, given: bytes = b"", settings: Mapping[str, str] | None = None
) -> bytes:
    """What `git` prints. settings: of its environment, in which no other GIT_* is left. Raises
    ReleaseError with the first line of its complaint."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=place,
            input=given,
            capture_output=True,
            check=False,
            env={**environment, **(settings or {})},
        )
    except FileNotFoundError:
        raise ReleaseError("git is missing; install it, such as by `apt-get install git`") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise ReleaseError(f"`git {' '.join(arguments)}` failed in {place}: {said[0]}")
    return done.stdout
