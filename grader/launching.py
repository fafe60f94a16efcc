"""How the ranks of a problem are started, by its `runtime` and by where they run."""

from __future__ import annotations

from pathlib import PurePosixPath

from cluster.interface import Host
from cluster.launchers.job import RankLauncher
from cluster.launchers.mpirun import MpirunLauncher
from cluster.launchers.program import Program
from cluster.launchers.solo import SoloLauncher
from cluster.launchers.torch_launcher import TorchLauncher
from grader.package import Problem

# What rank_main.py imports on a rank, compiled once instead of on each.
_MPI_RUNTIME = ("faulthandler", "grader.rank.runtime", "grader.rank.mpi_runtime")
RUNTIME_FOLDER = "runtime/grader/rank"


def launcher_for(problem: Problem, backend: str) -> RankLauncher:
    """The launcher for one grading of `problem` on clusters of the backend called `backend`."""
    if problem.runtime == "mpi":
        return MpirunLauncher(_MPI_RUNTIME, can_fork=backend == "netns")
    if problem.runtime == "torch":
        return TorchLauncher(can_fork=backend == "netns")
    return SoloLauncher()


def rank_program(host: Host, job: str) -> Program:
    """What runs on a rank of the job called `job`."""
    root = str(PurePosixPath(host.path("in")).parent)
    return Program(host.path(f"{RUNTIME_FOLDER}/rank_main.py"), (root, job))
