"""The local backend: plain processes, and honest refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cluster as package
from cluster.backends.local import LocalBackend, LocalCluster
from cluster.interface import ClusterError, ClusterSpec, OversizedFile, Unfit
from cluster.launchers import mpirun


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "solution.py").write_text("print('hello')")
    with (
        LocalBackend() as backend,
        backend.cluster(ClusterSpec(hosts=2, files={"job": folder})) as cluster,
    ):
        yield cluster


def test_a_host_runs_its_files_in_its_own_folder(cluster: LocalCluster) -> None:
    host = cluster.hosts[0]
    command = [sys.executable, "-I", f"{host.path('job')}/solution.py"]
    assert host.start(command, stdout=subprocess.PIPE).communicate()[0] == b"hello\n"
    show = "echo $HOME; pwd; echo $SECRET"
    os.environ["SECRET"] = "expected values"
    try:
        out = host.start(["sh", "-c", show], stdout=subprocess.PIPE).communicate()[0].decode()
    finally:
        del os.environ["SECRET"]
    home, folder, secret = out.split("\n")[:3]
    assert home == folder and "node1" in home and secret == ""


def test_mailbox_round_trip(cluster: LocalCluster) -> None:
    host = cluster.hosts[1]
    host.mailbox.stage("x", b"12345")
    assert not Path(host.path("in"), "x").exists()
    host.mailbox.reveal(["x"])
    assert host.start(["cp", f"{host.path('in')}/x", f"{host.path('out')}/y"]).wait(5) == 0
    assert host.mailbox.fetch("y", 5) == b"12345"
    with pytest.raises(OversizedFile):
        host.mailbox.fetch("y", 4)


def test_pause_resume_and_kill_reach_every_process(cluster: LocalCluster) -> None:
    host, other = cluster.hosts
    process = host.start(["sh", "-c", "sleep 1000 & sleep 1000"])
    staying = other.start(["sleep", "1000"])
    _until(lambda: len(host.processes()) == 3)
    host.pause()
    _until(lambda: {_state(pid) for pid in host.processes()} == {"T"})
    host.resume()
    _until(lambda: "T" not in {_state(pid) for pid in host.processes()})
    host.kill()
    assert process.wait(1) == -signal.SIGKILL
    assert host.processes() == [] and not host.alive()
    assert other.alive() and staying.poll() is None
    with pytest.raises(ClusterError, match="node1 is down"):
        host.start(["true"])


def test_a_host_killed_at_once_has_no_survivors(cluster: LocalCluster) -> None:
    host = cluster.hosts[0]
    started = [host.start(["sleep", "1000"]) for _ in range(5)]
    host.kill()
    assert all(process.wait(1) == -signal.SIGKILL for process in started)


def test_a_launcher_s_own_child_can_be_a_resident(cluster: LocalCluster) -> None:
    host = cluster.hosts[0]
    process = subprocess.Popen(host.resident_command(["sleep", "1000"]))
    _until(lambda: host.processes() == [process.pid])
    host.kill()
    assert process.wait(1) == -signal.SIGKILL


def test_killing_a_host_ends_its_mpi_ranks(cluster: LocalCluster) -> None:
    code = "import time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); "
    code += "print('up', flush=True); time.sleep(1000)"
    job = mpirun.launch(
        cluster,
        lambda host: cluster.hosts[host.index].resident_command([host.python, "-c", code]),
        2,
    )
    _until(lambda: job.output().count("up") == 2, 30)
    assert [len(host.processes()) for host in cluster.hosts] == [1, 1]
    cluster.hosts[1].kill()
    assert job.wait(10) == 128 + signal.SIGKILL
    assert "rank 1" in job.output()
    job.end()


def test_what_cannot_be_done_is_said(cluster: LocalCluster) -> None:
    host = cluster.hosts[0]
    with pytest.raises(Unfit, match="bytes are not counted on the local backend"):
        host.data_bytes()
    with pytest.raises(Unfit, match="no CPU quotas"):
        host.set_cpus(0.5)
    with pytest.raises(Unfit, match="share this machine's disk"):
        host.fill_disk()
    host.set_cpus(None)
    with LocalBackend() as backend, pytest.raises(Unfit, match="no network faults"):
        backend.cluster(ClusterSpec(network_faults=True))


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(str(package.__file__)).parents[1])!r})\n"
        "from cluster.backends.local import LocalBackend\n"
        "from cluster.interface import ClusterSpec\n"
        "cluster = LocalBackend().cluster(ClusterSpec(hosts=1))\n"
        "process = cluster.hosts[0].start(['sleep', '1000'])\n"
        "while not cluster.hosts[0].processes(): pass\n"
        "print(process.pid, cluster.hosts[0].path(''), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DISTLAB_STATE": str(tmp_path)},
    )
    assert shown.returncode == -signal.SIGKILL, shown.stderr
    pid, folder = shown.stdout.split()
    _until(lambda: not Path(folder).exists())
    _until(lambda: _state(int(pid)) in ("", "Z"))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
