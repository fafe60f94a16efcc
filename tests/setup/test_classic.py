"""The classic set-up works: the distribution's Open MPI, with mpi4py 3.1.4 built against it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from grader.package import find

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import runpy, sys
import numpy as np
from mpi4py import MPI

allreduce = runpy.run_path(sys.argv[1])["allreduce"]
comm = MPI.COMM_WORLD
for length in (0, 1, 1000, 100_003):
    vector = np.arange(length, dtype=np.float64) * (comm.rank + 1)
    result = np.empty_like(vector)
    allreduce(comm, vector, result, MPI.SUM)
    ranks = comm.size * (comm.size + 1) // 2
    assert np.array_equal(result, np.arange(length) * ranks), (comm.rank, length)
comm.Barrier()
if comm.rank == 0:
    print(comm.size, "ranks,", MPI.Get_library_version().split(",")[0])
"""


@pytest.fixture(scope="module")
def classic_python() -> str:
    if sys.version_info[:2] > (3, 11):
        pytest.skip("mpi4py 3.1.4 does not build with a Python newer than 3.11")
    command = [sys.executable, str(ROOT / "bootstrap" / "classic.py")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if built.returncode == 3 and os.environ.get("CI") != "true":
        pytest.skip(f"`make test` as root installs what is missing: {built.stderr.strip()}")
    assert built.returncode == 0, f"run `make test`, which builds it: {built.stderr}"
    return built.stdout.strip()


@pytest.mark.parametrize("ranks", [4, 3])
def test_the_reference_runs_on_the_distributions_mpi(classic_python: str, ranks: int) -> None:
    solution = find("03").private_folder
    if solution is None:
        pytest.skip("this release has no solutions/")
    command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    command += [classic_python, "-c", PROGRAM, str(solution / "solution.py")]
    # Open MPI 4 takes settings for 5 amiss, and a launcher's own variables more so.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    # A folder of its own: in the tests' enclosure every user is 0, and Open MPI names its folder in
    # /tmp after that, which may be another user's. A short path, as sockets lie there.
    with tempfile.TemporaryDirectory() as scratch:
        clean["TMPDIR"] = scratch
        done = subprocess.run(
            command, env=clean, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ranks} ranks, Open MPI v4.")
