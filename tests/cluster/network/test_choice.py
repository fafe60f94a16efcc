from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cluster.network import engine as choice
from cluster.network.engine import CHOICE, availability, choose_engine
from cluster.network.errors import EngineError
from cluster.network.netem import CUT
from cluster.network.netlink import NetlinkRefused
from cluster.network.paths import Path as Link
from cluster.network.uml_console import ConsoleChannel, module_files


def test_each_engine_says_whether_it_serves_and_why_not() -> None:
    found = {state.name: state for state in availability()}
    assert list(found) == ["kernel", "uml"]
    assert all(state.reason for state in found.values())


def test_an_unknown_engine_is_refused_with_the_valid_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "ns3")
    with pytest.raises(EngineError, match="'ns3'; valid: kernel, uml, none"):
        choose_engine()


def test_without_faults_the_switch_still_connects_and_refuses_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CHOICE, "none")
    engine = choose_engine()
    engine.start(2)
    try:
        engine.apply({})
        assert (engine.name, engine.alive()) == ("none", True)
        with pytest.raises(EngineError, match=CHOICE):
            engine.apply({Link(0, 1): CUT})
    finally:
        engine.stop()


def test_a_named_engine_that_cannot_serve_is_an_error_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CHOICE, "uml")
    monkeypatch.setattr(choice.uml, "PROGRAM", "linux.missing")
    with pytest.raises(EngineError, match=r"apt-get install -y user-mode-linux"):
        choose_engine()


def test_an_engine_not_started_says_so() -> None:
    for kind in (choice.KernelEngine, choice.UmlEngine):
        engine = kind()
        with pytest.raises(EngineError, match=r"start\(\) first|wait_ready\(\) first"):
            engine.apply({})
        assert not engine.alive()
        engine.stop()


def test_a_guest_without_its_modules_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("modules")
    with pytest.raises(EngineError, match="modules are not at"):
        module_files(folder, ["sch_netem"])
    (folder / "modules.dep").write_text(
        "kernel/a.ko: kernel/b.ko\nkernel/b.ko: kernel/c.ko.xz\nkernel/c.ko.xz:\n"
    )
    assert [file.name for file in module_files(folder, ["a"])] == ["c.ko.xz", "b.ko", "a.ko"]
    with pytest.raises(EngineError, match="no module sch_netem"):
        module_files(folder, ["sch_netem"])


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"\x09\0\0\0r\x02\0\0\0\x04\0\0\0", NetlinkRefused, "No such file"),
        (b"\x07\0\0\0xa\nlast", EngineError, "failed: last"),
        (b"", EngineError, "has gone"),
    ],
)
def test_what_the_guest_refuses_reaches_the_caller(
    answer: bytes, error: type[Exception], says: str
) -> None:
    ours, guests = socket.socketpair()
    channel = ConsoleChannel(ours, dead=lambda: False)

    def guest() -> None:
        with guests:
            guests.recv(100)
            guests.sendall(answer)

    thread = threading.Thread(target=guest)
    thread.start()
    with pytest.raises(error, match=says):
        channel.exchange([b"\x10" + bytes(15)])
    thread.join()
    channel.close()


OWNER = """
import os, time
from cluster.network.uml import UmlEngine
engine = UmlEngine()
engine.start(2)
engine.wait_ready(60)
print(engine.process_id, flush=True)
time.sleep(60)
"""


def test_the_guest_dies_with_its_owner_however_that_ends() -> None:
    if not next(state for state in availability() if state.name == "uml").usable:
        pytest.skip("no uml engine here")
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        guest = int(owner.stdout.readline())
        os.kill(guest, 0)
        owner.kill()
    deadline = time.monotonic() + 10
    while _runs(guest) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(guest)


def test_a_guest_that_dies_is_noticed_and_leaves_nothing() -> None:
    if not next(state for state in availability() if state.name == "uml").usable:
        pytest.skip("no uml engine here")
    before = set(Path("/run").iterdir())
    engine = choice.UmlEngine()
    engine.start(2)
    engine.wait_ready(60)
    assert engine.alive()
    os.kill(engine.process_id, signal.SIGKILL)
    assert not engine.alive()
    with pytest.raises(EngineError, match="switch"):
        engine.apply({Link(0, 1): CUT})
    engine.stop()
    assert set(Path("/run").iterdir()) == before


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
