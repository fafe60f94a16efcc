"""Describe the machine a grading ran on."""

from __future__ import annotations

import os
import platform
import re
import subprocess

from cluster.interface import ClusterError
from cluster.launchers.mpirun import mpirun_program
from grader.result import Machine


def describe(backend: str, network_engine: str) -> Machine:
    """The machine as results record it; unknown parts are empty or 0."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        pages >> 20,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        _mpi_version(),
        backend,
        network_engine,
    )


def _mpi_version() -> str:
    try:
        command = [mpirun_program(), "--version"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (ClusterError, OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\(Open MPI\) (\S+)|HYDRA.*?(\d+\.\d+\S*)", shown.stdout)
    return f"Open MPI {match[1]}" if match and match[1] else shown.stdout.partition("\n")[0]
