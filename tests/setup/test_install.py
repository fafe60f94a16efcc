"""Set-up says what is missing and the one command that brings it, and does nothing twice."""

from __future__ import annotations

import os
import re
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from bootstrap import install

    return install


def test_an_ordinary_user_is_told_the_one_command(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as stopped:
        install.install_system_packages(["bubblewrap", "user-mode-linux"], without=None)
    assert stopped.value.code == 3
    line = capsys.readouterr().err.splitlines()[-1].strip()
    assert line.endswith("bubblewrap user-mode-linux")


def test_a_closed_device_is_opened_by_the_same_command(
    install: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(install, "kernel_has_netem", lambda: False)
    may = os.access
    monkeypatch.setattr(
        install.os, "access", lambda path, mode: path != tmp_path and may(path, mode)
    )
    monkeypatch.setattr(install, "TUN", tmp_path)
    with pytest.raises(SystemExit):
        install.install_system_packages(["user-mode-linux"], without=None)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f"user-mode-linux && sudo chmod 666 {tmp_path}")


def test_what_only_some_tests_need_stops_nobody(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    install.install_system_packages(["openmpi-bin"], without="some tests")
    assert "Going on without some tests" in capsys.readouterr().out


def test_a_missing_program_is_noticed(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(install, "kernel_has_netem", lambda: False)
    monkeypatch.setattr(install.os, "geteuid", lambda: 0)
    assert install.needed_for_grading() == ["bubblewrap", "user-mode-linux", "e2fsprogs"]
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    assert install.needed_for_grading() == ["bubblewrap", "user-mode-linux"]
    monkeypatch.setattr(install, "kernel_has_netem", lambda: True)
    assert install.needed_for_grading() == ["bubblewrap"]


def test_the_lock_pins_exactly_what_runs() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    # Not sys.path, on which setuptools puts copies of its own.
    folders = list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    here = {plain(d.name): d.version.partition("+")[0] for d in distributions(path=folders)}
    assert {name: here.get(plain(name)) for name in pins} == pins
