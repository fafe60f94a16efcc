"""Problem 03's reference beside Open MPI's own all-reduce and Gloo's: 16 MiB at 200 Mbit/s."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.backends.netns import NetnsBackend
from cluster.launchers.mpirun import MpirunLauncher
from cluster.launchers.torch_launcher import TorchLauncher
from grader.bench import Bench, Wanted
from grader.package import Refused, find
from grader.rank_job import JobOrder, RankJob
from grader.submission import read

MIB = 1 << 20
ROUNDS = 7


@pytest.mark.soak
def test_the_reference_beats_open_mpi_and_keeps_within_the_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(__file__).parent / "p03_comparison"
    problem = find("03")
    assert problem.private_folder is not None
    submission = read(problem.private_folder / "solution.py", problem)
    mpi = replace(problem, folder=folder, refused=Refused())
    bound = 2 * 3 / 4 * 16 * MIB * 8 / 200e6
    rng = np.random.default_rng(3)
    times: dict[str, list[float]] = {"reference": [], "Open MPI": [], "gloo": []}
    with NetnsBackend() as backend, TorchLauncher(can_fork=True) as forking, ExitStack() as stack:
        forking.prepare()
        bench = Bench(backend, MpirunLauncher(), mpi, submission, Wanted(4, 1, True))
        stack.callback(bench.close)
        bench.fault("rate 200mbit on all")
        by_mpi = JobOrder(mpi, submission, 4, "mpi", "MPI")
        by_gloo = JobOrder(replace(mpi, runtime="torch"), submission, 4, "gloo", "Gloo")
        jobs = {
            "reference": stack.enter_context(RankJob(bench.cluster, MpirunLauncher(), by_mpi)),
            "gloo": stack.enter_context(RankJob(bench.cluster, forking, by_gloo)),
        }
        jobs["Open MPI"] = jobs["reference"]
        for number in range(ROUNDS + 1):  # the first one opens connections and is not counted
            inputs = [
                {"sendbuf": rng.integers(-9, 9, 4 * MIB).astype(np.float32)} for _ in range(4)
            ]
            want = np.sum([rank["sendbuf"] for rank in inputs], axis=0)
            for name, job in jobs.items():
                run = job.run(inputs, {"by": name}, timeout_s=60)
                assert all(np.array_equal(rank["recvbuf"], want) for rank in run.outputs)
                if number:
                    times[name].append(run.elapsed_s / bound)
    with capsys.disabled():
        print(f"\n16 MiB float32, 4 hosts, 200 Mbit/s, {ROUNDS} paired rounds; bound = 1")
        for name, values in times.items():
            shown = " ".join(f"{value:.2f}" for value in values)
            print(
                f"{name:10} median {statistics.median(values):.2f} best {min(values):.2f}: {shown}"
            )
    paired = [b / a for a, b in zip(times["reference"], times["Open MPI"], strict=True)]
    assert min(times["reference"]) <= 1.15
    assert statistics.median(paired) >= 1.3
