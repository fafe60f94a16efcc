"""MPI ranks that are forked on their hosts behave like started ones."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import enclosure
from cluster.backends.netns import NetnsBackend, NetnsCluster
from cluster.interface import ClusterSpec
from cluster.launchers.mpirun import MpirunLauncher
from cluster.launchers.program import Program

pytestmark = pytest.mark.skipif(not enclosure.inside(), reason="needs an enclosure")

_PROGRAM = """
import os, sys, time
from mpi4py import MPI
if not MPI.Is_initialized():
    MPI.Init_thread()
comm = MPI.COMM_WORLD
how = sys.argv[1]
if how == "look":
    words = [os.uname().nodename, str(os.getuid()), os.environ["OWN"], " ".join(sys.argv[1:])]
    print("|".join(words), sorted(os.listdir("/proc/self/fd")), flush=True)
    assert comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2
if how == "stay":
    os.fork()  # a process that outlives its rank goes with it all the same
    print("up", flush=True)
    time.sleep(1000)
if how == "fail" and comm.rank == 1:
    os._exit(7)
if how == "signal" and comm.rank == 1:
    os.kill(os.getpid(), 11)
comm.Barrier()
MPI.Finalize()
os._exit(0)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsCluster]:
    program = tmp_path_factory.mktemp("program") / "ranks.py"
    program.write_text(_PROGRAM)
    with (
        NetnsBackend() as backend,
        backend.cluster(ClusterSpec(2, 2, files={"ranks.py": program})) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def launcher() -> Iterator[MpirunLauncher]:
    with MpirunLauncher(can_fork=True) as made:
        yield made


def start(cluster: NetnsCluster, launcher: MpirunLauncher, how: str, *more: str):
    def program(host):
        return Program(host.path("ranks.py"), (how, *more), {"OWN": "a value with = and\nlines"})

    return launcher.start(cluster, program, 4)


def until(holds, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_arguments_environment_and_streams_are_those_of_the_stand_in(cluster, launcher) -> None:
    job = start(cluster, launcher, "look", "two words", "", "ünï")
    assert job.wait(60) == 0, job.output()
    job.end()
    seen = [line for line in job.output().splitlines() if "lines|" in line]
    assert len(seen) == 4
    assert all("lines|look two words  ünï" in line for line in seen), seen
    # Standard streams, what MPI has open, and nothing of the forker's: the first is MPI's.
    names = {line.split("|")[0] for line in job.output().splitlines() if line.startswith("node")}
    assert names == {"node1", "node2"}


@pytest.mark.parametrize(("how", "status"), [("fail", 7), ("signal", -signal.SIGSEGV)])
def test_a_rank_that_ends_badly_is_told_with_its_status(cluster, launcher, how, status) -> None:
    job = start(cluster, launcher, how)
    until(lambda: not job.running())
    ends = job.ends()
    job.end()
    assert (ends[0].rank, ends[0].status) == (1, status)


def test_ranks_go_when_their_job_is_ended(cluster, launcher) -> None:
    job = start(cluster, launcher, "stay")
    until(lambda: job.output().count("up") >= 4)
    assert sum(len(host.processes()) for host in cluster.hosts) > 10
    job.end()

    def left() -> list[str]:
        pids = [pid for host in cluster.hosts for pid in host.processes()]
        return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids]

    # A forked rank has its forker's command line. The forkers stay, one a host; mpirun's daemon,
    # whose mpirun was killed, may stay as well, and goes with its host.
    until(lambda: sum("warm_server.py" in program for program in left()) == 2)


def test_a_job_after_the_crash_of_a_host_has_forkers_again(cluster, launcher) -> None:
    """Last, because the hosts of the other tests go; with hosts of its own it can be run again."""
    site, spec = cluster.site, cluster.spec
    cluster.close()
    with site.cluster(spec) as crashing:
        job = start(crashing, launcher, "stay")
        until(lambda: job.output().count("up") >= 4)
        crashing.hosts[1].kill()
        until(lambda: not job.running())
        job.end()
    with site.cluster(spec) as fresh:
        job = start(fresh, launcher, "fail")
        until(lambda: not job.running())
        assert job.ends()[0].status == 7
        job.end()
