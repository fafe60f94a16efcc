"""What holds for every kind of job: imports, jobs in a row, killed ranks, other backends."""

from __future__ import annotations

import pytest

_ALONE = """
import os
import time

def work(group, x, mode):
    assert group is None
    if mode == "turns":
        while True:
            pass
    if mode == "dies":
        os._exit(0)
    if mode == "raises":
        raise KeyError("no")
    return x + (mode == "wrong")
"""
_SUM = """
import time
import numpy as np

def work(comm, x, mode):
    total = np.zeros_like(x)
    comm.Allreduce(x, total)
    return total
"""
_ONE_CHECK = """
import numpy as np
import pytest

from grader.ended import Failed


def inputs(ranks):
    return [dict(x=np.arange(10.0) + rank) for rank in range(ranks)]


def test(cluster):
    with cluster.job(2, "first") as job:
        job.run(inputs(2), dict(mode=""))
"""
_SEVERAL = (
    _ONE_CHECK
    + """

def test_jobs_one_after_the_other(cluster):
    for number in range(3):
        with cluster.job(2, "job %d" % number) as job:
            for ranks in (1, 2):
                given = [dict(x=np.full(5, float(number)))] * ranks
                run = job.run(given, dict(mode=""))
                for outputs in run.outputs:
                    assert (outputs["y"] == number * ranks).all()


def test_a_failing_job_leaves_its_record_and_the_next_one_runs(cluster):
    try:
        with cluster.job(2, "fails") as job:
            raise Failed("the check gives up")
    except Failed:
        pass
    with cluster.job(2, "works") as job:
        job.run(inputs(2), dict(mode=""))


def test_a_fault_with_a_time_is_for_the_timeline(cluster):
    with pytest.raises(ValueError, match="has a time; give it to"):
        cluster.fault("from 1s to 2s pause node1")


def test_bytes(cluster):
    with cluster.job(2, "counted") as job:
        given = [dict(x=np.zeros(1 << 17))] * 2
        traffic = job.run(given, dict(mode="")).traffic
        assert 1 << 20 < traffic[0].sent_bytes < 2.2 * (1 << 20), traffic
"""
)
_SENT_TWICE = """
import numpy as np
import pytest


@pytest.mark.fault("rate 100mbit on all")
def test(cluster):
    # Acknowledgements that are suddenly 400 ms late make TCP believe that all was lost.
    late = "from 0.15s to 1s delay 400ms on node2"
    given = [dict(x=np.ones(1 << 20))] * 2
    with cluster.job(2, "late") as job:
        job.run([dict(x=np.ones(1))] * 2, dict(mode=""))
        run = job.run(given, dict(mode=""), during=cluster.timeline(late))
    resent = sum(t.repeats.resent for t in run.traffic)
    assert resent > 50, run.traffic
    for t in run.traffic:
        assert 1 <= t.sent_bytes / (8 << 20) <= 1.08, run.traffic
        assert 1 <= t.received_bytes / (8 << 20) <= 1.08, run.traffic
"""
_SURVIVORS = """
import numpy as np
import pytest

from cluster.launchers.job import JobOptions


def test_survivors_answer(cluster):
    given = [dict(x=np.arange(10.0) + rank) for rank in range(3)]
    with cluster.job(3, "one is killed", JobOptions(fault_tolerant=True)) as job:
        run = job.run(given, dict(mode=""), lost={1}, during=job.killing({1: 0.5}))
        assert [fault.description for fault in job.record().faults] == ["kill rank 1"]
    assert run.outputs[1] == {}
    for rank in (0, 2):
        assert (run.outputs[rank]["y"] == given[0]["x"] + given[2]["x"]).all()


def test_a_killed_rank_is_named_when_it_is_awaited(cluster):
    given = [dict(x=np.arange(10.0) + rank) for rank in range(3)]
    with cluster.job(3, "one is killed", JobOptions(fault_tolerant=True)) as job:
        job.run(given, dict(mode=""), during=job.killing({1: 0.5}))


@pytest.mark.parametrize("mode", ["circle", "no revoke"])
def test_survivors_hang(cluster, mode):
    given = [dict(x=np.arange(10.0) + rank) for rank in range(3)]
    with cluster.job(3, mode, JobOptions(fault_tolerant=True)) as job:
        job.run(given, dict(mode=mode), lost={1}, during=job.killing({1: 0.5}))


def test_a_kill_that_comes_too_late_is_unfit(cluster):
    given = [dict(x=np.arange(10.0))]
    with cluster.job(1, "over before") as job:
        killing = job.killing({0: 5})
        job.run(given, dict(mode=""), during=killing)
    killing.must_have_fired()
"""
_SURVIVING = """
import time
import numpy as np
from mpi4py import MPI

def work(comm, x, mode):
    total = np.zeros_like(x)
    if comm.Get_rank() == 1:
        time.sleep(30)
    try:
        comm.Recv(total, 1)
    except MPI.Exception:
        if mode == "no revoke" and comm.Get_rank() == 2:
            comm.Recv(total, 0)
        if mode == "no revoke":
            comm.Agree(1)
        comm.Revoke()
        crew = comm.Shrink()
        if mode == "circle":
            crew.Recv(total, 1 - crew.Get_rank())
        crew.Allreduce(x, total)
    return total
"""


def test_a_python_problem_runs_alone(grade_package) -> None:
    modes = ("right", "wrong", "turns", "dies", "raises")
    checks = grade_package(runtime="python", solution=_ALONE, modes=modes, hosts=1, case_s=1)
    outcomes = {mode: check["outcome"] for mode, check in checks.items()}
    assert outcomes == {
        "right": "passed",
        "wrong": "failed",
        "turns": "timed out",
        "dies": "crashed",
        "raises": "crashed",
    }
    assert "Rank 0 waits for nobody" in checks["turns"]["message"]
    assert "solution.py:" in checks["turns"]["message"]
    assert "rank 0 on node1 ended with status 0" in checks["dies"]["message"]
    assert "rank 0 raised KeyError at solution.py:13 in work" in checks["raises"]["message"]


def test_checks_driver_and_submission_import_the_packages_model(grade_package) -> None:
    driver = """
import model

def run(solution, group, case):
    case.save("y", solution.work(group, model.twice(case.inputs["x"]), ""))
"""
    solution = """
from model import twice

def work(group, x, mode):
    return twice(x)
"""
    checks = """
import numpy as np
import pytest
from model import twice

@pytest.mark.points(1)
def test(cluster):
    with cluster.job(1) as job:
        assert job.run([dict(x=twice(np.ones(1)))]).outputs[0]["y"] == 8
"""
    shared = {"model.py": "def twice(x):\n    return 2 * x\n"}
    graded = grade_package(
        runtime="python", solution=solution, checks=checks, hosts=1, driver=driver, shared=shared
    )
    assert [(check["outcome"], check["message"]) for check in graded.values()] == [("passed", "")]


@pytest.mark.parametrize("runtime", ["mpi", "torch", "python"])
@pytest.mark.parametrize(
    ("line", "outcome", "says"),
    [
        ("time.sleep(60)", "timed out", "importing solution.py took more than 1 s; rank 0 stands"),
        ("raise OSError('odd')", "crashed", "raised OSError at solution.py:2 in <module> while it"),
        ("import os; os._exit(0)", "crashed", "ended with status 0 while it was imported"),
        ("raise SystemExit(0)", "crashed", "called sys.exit(0) at solution.py:2"),
    ],
)
def test_an_import_that_does_not_end_well(
    grade_package, runtime: str, line: str, outcome: str, says: str
) -> None:
    solution = f"import time\n{line}\ndef work(group, x, mode):\n    return x\n"
    checks = grade_package(
        runtime=runtime,
        solution=solution,
        checks=_ONE_CHECK.replace("(2", "(1") if runtime == "python" else _ONE_CHECK,
        hosts=1 if runtime == "python" else 2,
        load_s=1,
    )
    assert checks["test"]["outcome"] == outcome, checks["test"]["message"]
    assert says in checks["test"]["message"]


def test_jobs_on_one_cluster_do_not_meet(grade_package) -> None:
    checks = grade_package(runtime="mpi", solution=_SUM, checks=_SEVERAL, hosts=2)
    assert {c["outcome"] for c in checks.values()} == {"passed"}, checks
    labels = [
        [job["label"] for job in check["jobs"]]
        for name, check in checks.items()
        if name.startswith("test_a_failing")
    ]
    assert labels == [["fails", "works"]]


def test_what_tcp_sends_twice_is_counted_once(grade_package) -> None:
    checks = grade_package(runtime="mpi", solution=_SUM, checks=_SENT_TWICE, hosts=2)
    assert checks["test"]["outcome"] == "passed", checks["test"]["message"]


def test_ranks_that_a_check_kills(grade_package) -> None:
    checks = grade_package(runtime="mpi", solution=_SURVIVING, checks=_SURVIVORS, hosts=3)
    survived = checks["test_survivors_answer"]
    assert survived["outcome"] == "passed", survived["message"]
    named = checks["test_a_killed_rank_is_named_when_it_is_awaited"]
    assert named["outcome"] == "crashed"
    assert named["message"].startswith("rank 1 on node2 was killed by SIGKILL")
    circle = checks["test_survivors_hang[circle"]
    assert circle["outcome"] == "timed out"
    assert "A cycle of waits: 0 -> 2 -> 0" in circle["message"]
    behind = checks["test_survivors_hang[no revoke"]
    assert behind["outcome"] == "timed out"
    assert "rank 0 waits in Agree, solution.py:16." in behind["message"]
    assert "rank 2 waits in Recv from rank 0 (80 bytes), solution.py:14." in behind["message"]
    late = checks["test_a_kill_that_comes_too_late_is_unfit"]
    assert late["outcome"] == "unfit"
    assert late["message"] == "rank 0 was to be killed after 5 s; the case ended before"


@pytest.mark.parametrize("runtime", ["mpi", "torch"])
def test_the_local_backend_judges_what_it_can(grade_package, runtime: str) -> None:
    solution = _SUM
    if runtime == "torch":
        solution = (
            "import torch\nimport torch.distributed as dist\n"
            "def work(group, x, mode):\n"
            "    x = torch.from_numpy(x)\n    dist.all_reduce(x, group=group.process_group)\n"
            "    return x\n"
        )
    checks = grade_package("local", runtime=runtime, solution=solution, checks=_SEVERAL, hosts=2)
    counted = checks.pop("test_bytes")
    assert {c["outcome"] for c in checks.values()} == {"passed"}, checks
    assert counted["outcome"] == "unfit"
    assert counted["message"].startswith("bytes are not counted on the local backend; use")


def test_hangs_and_ends_are_told_on_the_local_backend(grade_package) -> None:
    solution = (
        "import os\n"
        "def work(comm, x, mode):\n"
        "    if mode == 'dies' and comm.Get_rank() == 1:\n        os._exit(3)\n"
        "    comm.Recv(x, (comm.Get_rank() + 1) % comm.Get_size())\n"
    )
    modes = ("hangs", "dies")
    checks = grade_package("local", runtime="mpi", solution=solution, modes=modes, hosts=2)
    assert checks["hangs"]["outcome"] == "timed out"
    assert "A cycle of waits: 0 -> 1 -> 0" in checks["hangs"]["message"]
    assert (
        "rank 1 waits in Recv from rank 0 (8,000 bytes), solution.py:5."
        in (checks["hangs"]["message"])
    )
    assert checks["dies"]["message"].startswith("rank 1 on node2 ended with status 3")
