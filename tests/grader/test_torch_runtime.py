"""Torch submissions, run for real: right, wrong, hanging in each way, dying."""

from __future__ import annotations

import pytest

_SOLUTION = """
import os
import time
import torch
import torch.distributed as dist
from torch.distributed import all_gather


def work(group, x, mode):
    x = torch.from_numpy(x).to(group.device)
    rank, size = group.rank, group.world_size
    right, left = (rank + 1) % size, (rank - 1) % size
    other = torch.zeros_like(x)
    if mode == "wrong":
        return x
    if mode == "forgotten" and rank == 3:
        return x
    if mode == "raises" and rank == 1:
        raise ValueError("a shape that does not fit")
    if mode == "dies" and rank == 1:
        os._exit(0)
    if mode == "wrapped" and rank != 1:
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            raise KeyError("lost a neighbour") from error
    if mode == "wrapped":
        os.kill(os.getpid(), 9)
    if mode == "mixed" and rank == 0:
        dist.barrier()  # mixed
    if mode == "roots":
        dist.broadcast(x, src=rank)
    if mode == "receives":
        dist.recv(other, left)
    if mode == "sends":
        dist.send(x, right)
    if mode == "wrapped by torch":
        wrapper = getattr(torch.nn.parallel, "Distributed" + "DataParallel")
        wrapper(torch.nn.Linear(1, 1))
    if mode == "refused":
        all_gather([other] * size, x)
    if mode == "posted":
        handle = dist.all_reduce(x, async_op=True)
        while rank == 2 and not handle.is_completed():
            time.sleep(0.001)
        if rank != 2:
            handle.wait()
        return x
    if mode == "posted and missing":
        if rank != 2:
            dist.all_reduce(x, async_op=True).wait()
        return x
    if mode == "ring":
        total = x.clone()
        for _ in range(size - 1):
            sending = dist.isend(x, right)
            dist.irecv(other, left).wait()
            sending.wait()
            x = other.clone()
            total += x
        return total
    if mode == "batch":
        total = x.clone()
        for shift in range(1, size):
            there, back = (rank + shift) % size, (rank - shift) % size
            operations = [
                dist.P2POp(dist.isend, x, there),
                dist.P2POp(dist.irecv, other, back),
            ]
            for handle in dist.batch_isend_irecv(operations):
                assert isinstance(handle, dist.Work)
                handle.wait()
            total += other
        return total
    if mode == "half a batch":
        operations = [dist.P2POp(dist.irecv, other, left)]
        for handle in dist.batch_isend_irecv(operations):
            handle.wait()  # half
    if mode == "scattered":
        part = torch.zeros(len(x) // size, dtype=x.dtype)
        dist.reduce_scatter_tensor(part, x)
        dist.all_gather_into_tensor(x, part, group=group.process_group)
        return x
    dist.all_reduce(x)  # last
    return x
"""

_MODES = (
    "right",
    "wrong",
    "forgotten",
    "raises",
    "dies",
    "wrapped",
    "mixed",
    "roots",
    "receives",
    "sends",
    "refused",
    "wrapped by torch",
    "posted",
    "posted and missing",
    "ring",
    "batch",
    "half a batch",
    "scattered",
)


@pytest.fixture(scope="module")
def checks(grade_package):
    return grade_package(
        runtime="torch",
        solution=_SOLUTION,
        modes=_MODES,
        case_s=2,
        refused=("all_gather", "all_gather_object", "DistributedDataParallel"),
    )


def line(text: str) -> str:
    return f"solution.py:{_SOLUTION[: _SOLUTION.index(text)].count(chr(10)) + 1}"


@pytest.mark.parametrize("mode", ["right", "posted", "ring", "batch", "scattered"])
def test_a_right_one_passes(checks, mode: str) -> None:
    assert (checks[mode]["outcome"], checks[mode]["message"]) == ("passed", "")


def test_a_wrong_one_fails_with_the_rank(checks) -> None:
    assert checks["wrong"]["outcome"] == "failed"
    assert "on rank 0" in checks["wrong"]["message"]


@pytest.mark.parametrize(
    ("mode", "says", "at"),
    [
        (
            "forgotten",
            "Ranks 0, 1, 2 stand in all_reduce, which needs everyone; rank 3",
            "dist.all_reduce(x)  # last",
        ),
        (
            "posted and missing",
            "Ranks 0, 1, 3 stand in all_reduce, which needs everyone; rank 2",
            "async_op=True).wait()",
        ),
        ("mixed", "in different collectives: all_reduce, barrier", "# mixed"),
        ("roots", "disagree about the root of broadcast: rank 0 names rank 0", "src=rank"),
        ("receives", "A cycle of waits: 0 -> 3 -> 2 -> 1 -> 0", "dist.recv(other"),
        ("sends", "or hand both to batch_isend_irecv", "dist.send(x"),
        ("half a batch", "A cycle of waits: 0 -> 3 -> 2 -> 1 -> 0", "# half"),
    ],
)
def test_a_hang_is_explained(checks, mode: str, says: str, at: str) -> None:
    check = checks[mode]
    assert check["outcome"] == "timed out"
    assert says in check["message"]
    assert line(at) in check["message"]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("raises", "rank 1 raised ValueError at solution.py:"),
        ("dies", "rank 1 on node2 ended with status 0"),
        ("wrapped", "rank 1 on node2 was killed by SIGKILL"),
    ],
)
def test_the_first_cause_of_a_crash_is_named(checks, mode: str, says: str) -> None:
    assert checks[mode]["outcome"] == "crashed"
    assert checks[mode]["message"].startswith(says)
    assert "Connection" not in checks[mode]["message"]


def test_a_refused_call_is_refused_under_any_name(checks) -> None:
    assert checks["refused"]["outcome"] == "refused"
    assert "all_gather is refused" in checks["refused"]["message"]


def test_a_refused_wrapper_is_refused_when_it_is_made(checks) -> None:
    assert checks["wrapped by torch"]["outcome"] == "refused"
    assert "DistributedDataParallel is refused" in checks["wrapped by torch"]["message"]


def test_operations_are_on_the_timeline(checks) -> None:
    spans = checks["scattered"]["jobs"][0]["ranks"][1]["spans"]
    seen = {s["operation"]: s for s in spans if s["line"]}
    assert seen["reduce_scatter_tensor"]["bytes"] == 8000
    assert seen["all_gather_into_tensor"]["bytes"] == 2000
    assert f"solution.py:{seen['all_gather_into_tensor']['line']}" == line("dist.all_gather_into")
    ring = checks["ring"]["jobs"][0]["ranks"][0]["spans"]
    posted = [s for s in ring if s["operation"] in ("isend", "irecv")]
    assert len(posted) == 6 and all(s["end"] is not None for s in posted)
    assert {s["peer"] for s in posted} == {1, 3}


def test_a_job_runs_cases_on_more_and_fewer_ranks_in_any_order(grade_package) -> None:
    checks = """
import numpy as np
import pytest

@pytest.mark.points(1)
def test(cluster):
    with cluster.job(4) as job:
        for ranks in (2, 1, 3, 4, 2):
            run = job.run([dict(x=np.ones(5))] * ranks, dict(mode=""), timeout_s=5)
            assert all(np.array_equal(given["y"], np.full(5, ranks)) for given in run.outputs)
"""
    solution = """
import torch
import torch.distributed as dist

def work(group, x, mode):
    x = torch.from_numpy(x)
    dist.all_reduce(x, group=group.process_group)
    return x
"""
    graded = grade_package(runtime="torch", solution=solution, checks=checks, modes=("one",))
    assert [(check["outcome"], check["message"]) for check in graded.values()] == [("passed", "")]
