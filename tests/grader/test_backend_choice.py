"""--backend and --inventory: what they choose, and what is a mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.backend_choice import BackendMistake, choose
from grader.package import find


def test_without_options_the_best_of_the_system() -> None:
    place = choose(None, None)
    assert place.backend == ("netns" if sys.platform == "linux" else "local")
    assert not choose("local", None).needs_enclosure


@pytest.mark.parametrize(
    ("backend", "inventory", "says"),
    [
        ("mars", None, "there is no backend 'mars'; choose from netns, local, ssh"),
        ("ssh", None, "needs --inventory FILE"),
        ("local", "hosts.toml", "goes with --backend ssh, not with local"),
        (None, "hosts.toml", r"the inventory .*hosts.toml cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, backend: str | None, inventory: str | None, says: str
) -> None:
    with pytest.raises(BackendMistake, match=says):
        choose(backend, tmp_path / inventory if inventory else None)


def test_the_command_grades_on_plain_processes(tmp_path: Path) -> None:
    sample = find("03").folder / "sample_submission.py"
    environment = {**os.environ, "DISTLAB_STATE": str(tmp_path / "state")}
    environment.pop("DISTLAB_ENCLOSURE", None)
    command = [sys.executable, "-m", "grader.cli", "test", "03", str(sample)]
    command += ["--backend", "local", "--only", "test_sum_on_four_ranks"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Passed, 8 of 8 points" in done.stdout
