"""The classic set-up: the distribution's Open MPI, and mpi4py 3.1.4 built against it.

    python bootstrap/classic.py     builds .venv-classic if need be, prints the path of its Python

Exit status 3 and a sentence where something is missing, 1 where the build failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".venv-classic"
STAMP = FOLDER / ".distlab-stamp"
LOCK = Path(__file__).resolve().parent / "classic.lock"
MPICC = "mpicc.openmpi"
MPIRUN = "mpirun.openmpi"
_NEWEST_PYTHON = (3, 11)  # that mpi4py 3.1.4's generated C compiles with


class BuildFailed(Exception):
    """The packages could not be built; the message ends with pip's own words."""


def missing_packages() -> list[str]:
    """Debian packages that the build needs and that are missing."""
    if sys.version_info[:2] > _NEWEST_PYTHON:
        return []
    wanted = {MPIRUN: "openmpi-bin", MPICC: "libopenmpi-dev", "gcc": "gcc"}
    packages = [package for program, package in wanted.items() if not shutil.which(program)]
    if not Path("/usr/include/stdlib.h").exists():
        packages.append("libc6-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        packages.append(f"python{sys.version_info.major}.{sys.version_info.minor}-dev")
    return packages


def obstacle() -> str | None:
    """Why it cannot be built; None if it can."""
    if sys.version_info[:2] > _NEWEST_PYTHON:
        return "mpi4py 3.1.4 does not build with a Python newer than 3.11"
    if packages := missing_packages():
        return f"sudo apt-get install -y --no-install-recommends {' '.join(packages)}"
    return None


def _stamp() -> str:
    return f"{sys.version}\n{FOLDER}\n{LOCK.read_text()}"


def is_built() -> bool:
    """Whether it is there, for this Python and at these versions."""
    return STAMP.exists() and STAMP.read_text() == _stamp()


def build() -> Path:
    """Build it unless it is there; return its Python. Raises BuildFailed."""
    python = FOLDER / "bin" / "python"
    if is_built():
        return python
    print("Building mpi4py 3.1.4 with the system's Open MPI; two minutes", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    pip += ["--disable-pip-version-check", "-r", str(LOCK)]
    tools = LOCK.with_name("classic-build.lock")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(FOLDER)],
        [*pip[:-1], str(tools)],
        [*pip, "--no-build-isolation", "--no-binary", "mpi4py"],
    ):
        done = subprocess.run(
            command,
            env=os.environ | {"MPICC": shutil.which(MPICC) or MPICC},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BuildFailed(f"`{' '.join(command)}` failed:\n{done.stdout[-4000:]}")
    STAMP.write_text(_stamp())
    return python


if __name__ == "__main__":
    missing = None if is_built() else obstacle()
    if missing:
        print(missing, file=sys.stderr)
        sys.exit(3)
    try:
        print(build())
    except BuildFailed as error:
        sys.exit(str(error))
