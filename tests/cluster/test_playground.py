"""`distlab cluster`: up, exec, mpirun, fault, status, heal, down, as a learner types them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
from mpi4py import MPI
import time
comm = MPI.COMM_WORLD
comm.barrier()
began = time.monotonic()
comm.send(b"x", 1) if comm.rank == 0 else comm.recv(source=0) if comm.rank == 1 else None
comm.barrier()
print("rank", comm.rank, "of", comm.size, flush=True)
"""


def distlab(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DISTLAB_STATE": str(state)}
    environment.pop("DISTLAB_ENCLOSURE", None)
    return subprocess.run(
        [sys.executable, "-m", "grader.cli", "cluster", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=90,
        check=False,
    )


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("playground")
    files = folder / "files"
    files.mkdir()
    (files / "program.py").write_text(PROGRAM)
    done = distlab(folder, "up", "--hosts", "3", "--files", str(files))
    assert done.returncode == 0, done.stderr
    yield folder
    assert distlab(folder, "down").returncode == 0
    assert "no cluster is up" in distlab(folder, "status").stderr


def test_a_second_cluster_is_refused(state: Path) -> None:
    done = distlab(state, "up")
    assert (done.returncode, "is up already" in done.stderr) == (2, True)


def test_exec_runs_on_the_host_and_passes_streams_and_status(state: Path) -> None:
    done = distlab(state, "exec", "node2", "--", "sh", "-c", "hostname; echo no >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "node2\n", "no\n")
    done = distlab(state, "exec", "node9", "--", "hostname")
    assert (done.returncode, "has node1, node2, node3" in done.stderr) == (2, True)


def test_mpirun_runs_on_all_hosts(state: Path) -> None:
    done = distlab(state, "mpirun", "-n", "3", "--", sys.executable, "/distlab/files/program.py")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank")]
    assert sorted(lines) == [f"rank {r} of 3" for r in range(3)]


def test_a_fault_is_proven_felt_shown_and_healed(state: Path) -> None:
    ping = [
        "exec",
        "node1",
        "--",
        sys.executable,
        "-c",
        "import socket, time; s = socket.socket(); t = time.monotonic()\n"
        "try: s.connect(('node2', 9))\n"
        "except ConnectionRefusedError: print(time.monotonic() - t)",
    ]
    assert float(distlab(state, *ping).stdout) < 0.05
    done = distlab(state, "fault", "delay 60ms on node1->node2")
    assert (done.returncode, "in force" in done.stdout) == (0, True), done.stderr
    assert float(distlab(state, *ping).stdout) > 0.058
    assert "delay 60ms on node1->node2" in distlab(state, "status").stdout
    assert distlab(state, "heal").returncode == 0
    assert float(distlab(state, *ping).stdout) < 0.05
    assert "none in force" in distlab(state, "status").stdout
    done = distlab(state, "fault", "dely 60ms on all")
    assert (done.returncode, "is no fault" in done.stderr) == (2, True)


def test_a_killed_host_is_down_in_the_status(state: Path) -> None:
    assert distlab(state, "fault", "kill node3").returncode == 0
    line = next(x for x in distlab(state, "status").stdout.splitlines() if x.startswith("node3"))
    assert "down" in line
