"""The doctor finds what is there, and names the one command for what is not."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from cluster import enclosure
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


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The kernel's settings: an empty folder in place of /proc/sys."""
    monkeypatch.setattr(enclosure, "_SYSCTL", tmp_path / "sys")
    (tmp_path / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "sys" / "user").mkdir()
    return tmp_path / "sys"


@pytest.mark.parametrize(
    ("name", "value", "reason", "mend"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor forbids user namespaces",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "kernel/unprivileged_userns_clone",
            "0",
            "user namespaces are switched off",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            "user/max_user_namespaces",
            "0",
            "user namespaces are switched off",
            "sudo sysctl -w user.max_user_namespaces=15000",
        ),
        ("user/max_user_namespaces", "9", "this container may not", "start it with --privileged"),
    ],
)
def test_whoever_may_not_make_namespaces_is_told_the_one_command(
    settings: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str, mend: str
) -> None:
    def refuse(_flags: int) -> None:
        raise PermissionError(1, "no")

    (settings / name).write_text(f"{value}\n")
    monkeypatch.setattr(enclosure.linux, "unshare", refuse)
    monkeypatch.setattr(enclosure.os, "geteuid", lambda: 1000)
    code, lines = examined()
    assert code == 3
    assert any(line.startswith("missing  namespaces") and reason in line for line in lines)
    assert f"namespaces: {mend}" in lines


def test_root_is_told_that_apparmor_stops_the_sandboxes(
    settings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (settings / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    refusing = tmp_path / "bwrap"
    words = "bwrap: setting up uid map: Permission denied"
    refusing.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\necho {words} >&2; exit 1\n')
    refusing.chmod(0o755)
    # As who we are: another user may not look into the test's folder.
    as_ourselves = "import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])"
    monkeypatch.setattr(doctor, "_AS_A_HOST", as_ourselves)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, lines = examined()
    assert code == 3
    assert any(words in line for line in lines)
    assert "bubblewrap: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in lines


def test_what_is_not_needed_does_not_make_a_machine_unready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor.cgroup, "usable", lambda: False)
    code, lines = examined()
    assert (code, lines[-1]) == (0, "Ready to grade.")
    assert "control groups: run distlab as root" in lines
