"""A submission is judged on real machines: cases, stacks of a hang, clocks."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cluster.backends.ssh import SshBackend, SshCluster
from cluster.interface import ClusterSpec
from cluster.inventory import load_inventory
from grader import package, submission
from grader.bench import Wanted, cluster_spec
from grader.ended import TimedOut
from grader.launching import launcher_for
from grader.rank_job import JobOrder, RankJob

_SOLUTIONS = {
    "mpi": """
import numpy as np
def work(comm, x, mode):
    total = np.zeros_like(x)
    if mode == "hangs":
        comm.Recv(x, 1 - comm.Get_rank())
    comm.Allreduce(x, total)
    return total
""",
    "torch": """
import torch
import torch.distributed as dist
def work(group, x, mode):
    x = torch.from_numpy(x)
    if mode == "hangs":
        dist.recv(x, 1 - group.rank)
    dist.all_reduce(x, group=group.process_group)
    return x
""",
}
_TOML = """
number = 90
title = "A package of the tests"
summary = "a sum over all ranks"
level = "basic"
topics = ["testing"]
points = 1
runtime = "{runtime}"
functions = ["work"]
cluster = {{ hosts = 2 }}
"""
_DRIVER = """
def run(solution, group, case):
    case.save("y", solution.work(group, case.inputs["x"], case.params["mode"]))
"""


@pytest.fixture
def cluster(inventory_file: Path) -> Iterator[SshCluster]:
    with SshBackend(load_inventory(inventory_file)).cluster(ClusterSpec(hosts=2)) as cluster:
        yield cluster


@pytest.mark.parametrize("runtime", ["mpi", "torch"])
def test_a_submission_is_judged(inventory_file: Path, tmp_path: Path, runtime: str) -> None:
    folder = tmp_path / "p90_testing"
    folder.mkdir()
    (folder / "problem.toml").write_text(_TOML.format(runtime=runtime))
    (folder / "driver.py").write_text(_DRIVER)
    (tmp_path / "solution.py").write_text(_SOLUTIONS[runtime])
    problem = package.load(folder)
    handed_in = submission.read(tmp_path / "solution.py", problem)
    spec = cluster_spec(problem, handed_in, Wanted())
    inputs = [{"x": np.arange(1000.0) + rank} for rank in range(2)]
    inventory = load_inventory(inventory_file)
    without_gpus = [dataclasses.replace(m, gpus=None) for m in inventory.machines]
    backend = SshBackend(dataclasses.replace(inventory, machines=tuple(without_gpus)))
    with launcher_for(problem, "ssh") as launcher, backend.cluster(spec) as cluster:
        order = JobOrder(problem, handed_in, 2, "job0", "over ssh")
        with RankJob(cluster, launcher, order) as job:
            run = job.run(inputs, {"mode": "sums"})
            for outputs in run.outputs:
                assert (outputs["y"] == inputs[0]["x"] + inputs[1]["x"]).all()
            assert run.traffic[0].sent_bytes > 4000
            with pytest.raises(TimedOut, match=r"A cycle of waits: 0 -> 1 -> 0") as hang:
                job.run(inputs, {"mode": "hangs"}, timeout_s=2)
        assert "solution.py:" in hang.value.message
        record = job.record()
        assert [rank.host for rank in record.ranks] == ["alpha", "beta"]
        assert all(rank.stack and rank.stack[0].startswith("solution.py:") for rank in record.ranks)
        assert all(0 < span.start < 60 for rank in record.ranks for span in rank.spans)


def test_only_processes_with_a_handler_are_signalled(cluster: SshCluster) -> None:
    host = cluster.hosts[0]
    code = "import signal, sys, time; signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7)); "
    code += "print('up', flush=True); time.sleep(60)"
    listening = host.start([host.python, "-c", code], stdout=subprocess.PIPE)
    assert listening.stdout is not None and listening.stdout.readline() == b"up\n"
    deaf = host.start(["sleep", "60"])
    while len(host.processes()) < 2:
        time.sleep(0.01)
    host.signal_ranks(signal.SIGUSR2)
    assert listening.wait(5) == 7
    assert deaf.poll() is None


def test_the_offset_of_a_clock(cluster: SshCluster) -> None:
    # These machines share one clock, so that its offset is none but for the round trip.
    assert abs(cluster.hosts[1].clock_offset()) < 0.05
