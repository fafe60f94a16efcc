"""The list of what a cluster made: cleaned when its owner is gone, and never before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster import linux
from cluster.ledger import Ledger, clean_leftovers


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTLAB_STATE", str(tmp_path))
    return tmp_path


def in_child(body) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_what_a_dead_owner_made_is_removed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"

    def owner() -> None:
        Ledger.open().record_folder(str(scratch))
        scratch.mkdir()
        os.kill(os.getpid(), 9)

    in_child(owner)
    assert scratch.exists()
    assert clean_leftovers() == [str(scratch)]
    assert not scratch.exists()
    assert list((tmp_path / "ledger").iterdir()) == []


def test_a_living_owner_keeps_what_it_made(tmp_path: Path) -> None:
    ledger = Ledger.open()
    scratch = tmp_path / "scratch"
    ledger.record_folder(str(scratch))
    scratch.mkdir()
    assert clean_leftovers() == []
    assert scratch.exists()
    ledger.close()
    assert not scratch.exists()


def test_a_living_owner_is_seen_from_another_pid_namespace(tmp_path: Path) -> None:
    ledger = Ledger.open()
    scratch = tmp_path / "scratch"
    ledger.record_folder(str(scratch))
    scratch.mkdir()

    def cleaner() -> None:
        os.close(ledger.lock or -1)
        linux.unshare(linux.CLONE_NEWPID)
        in_child(clean_leftovers)

    in_child(cleaner)
    assert scratch.exists()
    ledger.close()


def test_a_damaged_list_stops_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    (folder / "1-2.lock").touch()
    (folder / "1-2.json").write_text("{")
    assert clean_leftovers() == []
    assert list(folder.iterdir()) == []
