"""Torch ranks forked from the warm parent into emulated hosts."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import enclosure
from cluster.backends.netns import NetnsBackend, NetnsCluster
from cluster.interface import ClusterError, ClusterSpec, GpuInfo
from cluster.launchers import torch_ranks
from cluster.launchers.cold_start import ColdStarter
from cluster.launchers.program import Program, RankStarter
from cluster.launchers.rank_env import RankPlace
from cluster.launchers.torch_launcher import TORCH_MODULES
from cluster.launchers.warm_parent import WarmParent

pytestmark = pytest.mark.skipif(not enclosure.inside(), reason="needs an enclosure")

_PROGRAMS = {
    "train": """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group(os.environ["DISTLAB_TORCH_BACKEND"])
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((1 << 18,), float(rank + 1))
dist.all_reduce(x)
assert (x == size * (size + 1) / 2).all()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1, bias=False))
batch = torch.full((4, 8), float(rank))
model(batch).mean().backward()
wanted = sum(range(size)) / size
assert torch.allclose(model.module.weight.grad, torch.full((1, 8), wanted))
torch.optim.SGD(model.parameters(), lr=0.1).step()
print("trained", os.uname().nodename, flush=True)
dist.destroy_process_group()
""",
    "wait": """
import torch.distributed as dist, time
dist.init_process_group("gloo"); dist.barrier(); print("up", flush=True); time.sleep(1000)
""",
    "look": """
import atexit, json, os, sys, threading, numpy, random
found = {
    "argv": sys.argv, "name": __name__, "file": __file__,
    "environ": dict(os.environ), "path": sys.path,
    "cluster": [n for n in sys.modules if n.split(".")[0] == "cluster"],
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")), "stdin": sys.stdin.read(),
    "uid": os.getuid(), "caps": [l for l in open("/proc/self/status") if l.startswith("CapEff")],
    "block": open("/proc/self/environ").read(), "threads": threading.active_count(),
    "random": [numpy.random.random(), random.random()], "cwd": os.getcwd(),
}
print(json.dumps(found))
atexit.register(lambda: print("at exit"))
""",
    "fail": "import sys\ndef inner():\n    raise KeyError('odd')\ninner()\n",
    "stop": "import sys\nprint('no newline', end='')\nsys.exit('told why')\n",
    "broken": "def f(:\n",
}


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[WarmParent, NetnsBackend]]:
    with WarmParent(TORCH_MODULES) as parent, NetnsBackend() as backend:
        yield parent, backend


@pytest.fixture
def parent(site: tuple[WarmParent, NetnsBackend]) -> WarmParent:
    return site[0]


@pytest.fixture
def cluster(site: tuple[WarmParent, NetnsBackend], tmp_path: Path) -> Iterator[NetnsCluster]:
    for name, text in _PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text)
    with site[1].cluster(ClusterSpec(hosts=3, files={"job": tmp_path})) as cluster:
        yield cluster


def _program(name: str, **more: object) -> Program:
    return Program(f"/distlab/job/{name}.py", **more)  # type: ignore[arg-type]


def _launch(cluster: NetnsCluster, name: str, starter: RankStarter) -> torch_ranks.TorchJob:
    return torch_ranks.launch(cluster, lambda _: _program(name), len(cluster.hosts), starter)


def test_a_ddp_step_on_every_host_in_well_under_an_import(
    cluster: NetnsCluster, parent: WarmParent
) -> None:
    parent.wait_ready()
    assert parent.import_s is not None
    before = cluster.hosts[0].data_bytes()
    started = time.monotonic()
    job = _launch(cluster, "train", parent)
    status = job.wait(30)
    took = time.monotonic() - started
    traffic = cluster.hosts[0].data_bytes() - before
    job.end()
    assert status == 0, job.output()
    for rank, host in enumerate(job.placement):
        assert job.output(rank) == f"trained {host.name}\n"
    # Six ranks' imports on two cores would take at least twice as long as the parent's one.
    assert took < parent.import_s
    # A ring all-reduce of 1 MiB over three hosts sends 4/3 MiB from each; none of it is control.
    assert 1_398_000 < traffic.sent_bytes < 1_700_000
    assert traffic.control_bytes < 100_000


def test_a_rank_is_a_fresh_main_program(cluster: NetnsCluster, parent: WarmParent) -> None:
    found = []
    for seed in ("first", "second"):
        program = _program(
            "look", arguments=["a b", ""], environment={"ONLY": seed}, search_path=["/distlab/job"]
        )
        status, text = _run(parent, cluster, program)
        assert status == 0 and text.endswith("}\nat exit\n"), text
        found.append(json.loads(text.splitlines()[0]))
    look = found[0]
    assert look["argv"] == ["/distlab/job/look.py", "a b", ""]
    assert look["name"] == "__main__" and look["file"] == "/distlab/job/look.py"
    assert look["environ"] == {**cluster.hosts[0].record.environment, "ONLY": "first"}
    assert look["path"][0] == "/distlab/job"
    assert not any(Path(entry, "cluster").exists() for entry in look["path"][1:])
    assert look["cluster"] == [] and look["stdin"] == "" and look["threads"] == 1
    assert look["fds"] == [0, 1, 2, 3]  # the last is that of the listing itself
    assert look["uid"] == 1000 and look["cwd"] == "/tmp"
    assert look["caps"][0].split()[1] == "0" * 16
    assert "DISTLAB" not in look["block"]
    assert set(look["random"]).isdisjoint(found[1]["random"]), "ranks must not share a seed"


def test_the_ways_a_program_ends(cluster: NetnsCluster, parent: WarmParent) -> None:
    status, text = _run(parent, cluster, _program("fail"))
    assert status == 1
    frames = [line for line in text.splitlines() if line.startswith("  File")]
    assert frames == [
        '  File "/distlab/job/fail.py", line 4, in <module>',
        '  File "/distlab/job/fail.py", line 3, in inner',
    ]
    assert text.endswith("KeyError: 'odd'\n")
    assert _run(parent, cluster, _program("stop")) == (1, "told why\nno newline")
    status, text = _run(parent, cluster, _program("broken"))
    assert status == 1 and "SyntaxError" in text and "rank_program" not in text
    status, text = _run(parent, cluster, _program("absent"))
    assert status == 1 and "FileNotFoundError" in text


def test_a_killed_rank_is_told_apart(cluster: NetnsCluster, parent: WarmParent) -> None:
    job = _launch(cluster, "wait", parent)
    _until(lambda: job.output().count("up") == 3)
    assert sorted(os.listdir(f"/proc/{job.ranks[1].pid}/task")) != []
    os.kill(job.ranks[1].pid, signal.SIGKILL)
    _until(lambda: job.first_failure() is not None)
    failure = job.first_failure()
    assert failure is not None
    assert failure.says() == "rank 1 on node2 was killed by SIGKILL"
    assert job.running() and job.wait(0.05) is None
    job.end()
    assert [end.status for end in job.ends()] == [-9, -9, -9]
    assert not job.running() and job.wait(0) == -9


def test_a_crashed_host_takes_its_rank(cluster: NetnsCluster, parent: WarmParent) -> None:
    job = _launch(cluster, "wait", parent)
    _until(lambda: job.output().count("up") == 3)
    cluster.hosts[2].kill()
    _until(lambda: job.first_failure() is not None)
    assert [end.says() for end in job.ends()] == ["rank 2 on node3 was killed by SIGKILL"]
    with pytest.raises(ClusterError, match="node3 is down"):
        parent.start_rank(cluster.hosts[2], _program("look"), stdout=1, stderr=2)
    job.end()


def test_the_store_is_fenced_and_ends_with_the_job(
    cluster: NetnsCluster, parent: WarmParent
) -> None:
    store = parent.start_store(cluster.launcher_access.head_address)
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{store.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["CapEff"] == "0" * 16 and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    pid = store.pid
    store.kill()
    assert store.wait(2) == -signal.SIGKILL
    assert not Path(f"/proc/{pid}").exists()


def test_closing_the_parent_ends_its_ranks(cluster: NetnsCluster) -> None:
    parent = WarmParent(TORCH_MODULES)
    job = _launch(cluster, "wait", parent)
    _until(lambda: job.output().count("up") == 3)
    pids = [rank.pid for rank in job.ranks]
    parent.close()
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    _until(lambda: not job.running())


def test_more_ranks_than_slots_are_refused(cluster: NetnsCluster, parent: WarmParent) -> None:
    with pytest.raises(ClusterError, match="4 ranks do not fit 3 slots"):
        torch_ranks.launch(cluster, lambda _: _program("look"), 4, parent)


def test_gpu_hosts_use_nccl_and_share_a_gpu_as_separate_hosts(cluster: NetnsCluster) -> None:
    host = cluster.hosts[0]
    place = RankPlace(1, 4, 1, 2, "torchrun")

    def environment() -> dict[str, str]:
        return torch_ranks.rendezvous_environment(host, place, "10.0.0.1", 1)

    assert environment()["DISTLAB_TORCH_BACKEND"] == "gloo"
    host.gpus = GpuInfo("H200", 1)
    assert environment()["DISTLAB_TORCH_BACKEND"] == "nccl"
    assert environment()["NCCL_HOSTID"] == "node1-1"
    host.gpus = GpuInfo("H200", 2)
    assert environment()["NCCL_HOSTID"] == "node1"
    assert environment()["NCCL_SOCKET_IFNAME"] == environment()["GLOO_SOCKET_IFNAME"] == "data0"


def test_cold_ranks_run_and_end_the_same_way(cluster: NetnsCluster, parent: WarmParent) -> None:
    for name in ("fail", "stop", "broken"):
        assert _run(ColdStarter(), cluster, _program(name)) == _run(parent, cluster, _program(name))


def test_a_cold_store_listens_where_it_was_told() -> None:
    store = ColdStarter().start_store("127.0.0.1")
    socket.create_connection(("127.0.0.1", store.port), timeout=2).close()
    store.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", store.port), timeout=2)


def _run(starter: RankStarter, cluster: NetnsCluster, program: Program) -> tuple[int, str]:
    read, write = os.pipe()
    rank = starter.start_rank(cluster.hosts[0], program, stdout=write, stderr=write)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as stream:
        text = stream.read()
    return rank.wait(10), text


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
