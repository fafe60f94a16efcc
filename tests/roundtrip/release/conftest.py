"""A checkout of its own: the files of this one, committed in a fresh repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_OF_NOBODY = {
    "GIT_AUTHOR_NAME": "tests",
    "GIT_AUTHOR_EMAIL": "tests@localhost",
    "GIT_COMMITTER_NAME": "tests",
    "GIT_COMMITTER_EMAIL": "tests@localhost",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def run_git(place: Path, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _OF_NOBODY
    done = subprocess.run(
        ["git", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit_all(place: Path) -> None:
    run_git(place, "add", "--all")
    run_git(place, "commit", "--quiet", "--message=all")


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be read only."""
    place = tmp_path_factory.mktemp("checkout") / "distlab"
    unwanted = (".git", ".venv*", "__pycache__", "runs", ".*_cache", "*.egg-info", "build")
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*unwanted))
    run_git(place, "init", "--quiet", "--initial-branch=main")
    commit_all(place)
    return place


@pytest.fixture
def checkout(committed: Path, tmp_path: Path) -> Path:
    """To be changed at will."""
    place = tmp_path / "checkout"
    shutil.copytree(committed, place)
    return place
