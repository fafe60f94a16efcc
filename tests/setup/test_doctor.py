"""The doctor finds what is there, and names the one command for what is not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from grader import doctor


def examined() -> tuple[int, list[str]]:
    console = Console(file=io.StringIO(), width=120)
    code = doctor.examine(console)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue().strip().splitlines()


def test_a_machine_that_runs_this_suite_is_ready() -> None:
    code, lines = examined()
    assert (code, lines[-1]) == (0, "Ready to grade."), lines
    assert [line for line in lines if line.startswith("ok") and "network faults" in line]


def test_nothing_installed_is_a_finding_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, lines = examined()
    assert code == 3
    assert any("bubblewrap" in line and line.startswith("missing") for line in lines)
    mends = [line for line in lines if line.startswith("bubblewrap: ")]
    assert len(mends) == 1
    assert mends[0].endswith("apt-get install -y --no-install-recommends bubblewrap")
    assert lines[-1].startswith("Not ready: mend bubblewrap")


def test_what_is_not_needed_does_not_make_a_machine_unready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor.cgroup, "usable", lambda: False)
    code, lines = examined()
    assert (code, lines[-1]) == (0, "Ready to grade.")
    assert "control groups: run distlab as root" in lines
