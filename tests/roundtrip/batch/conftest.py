"""A checkout of its own with one small problem, and batches run in it as an instructor would."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.package import root_folder

_TOML = """
number = {number}
title = "Twice as much"
summary = "double(x), for the tests of batches and sinks"
level = "basic"
topics = ["testing"]
points = 10
runtime = "python"
functions = ["double"]

[cluster]
hosts = 1
pids = 64

[limits]
case = 2

[refused]
names = ["ctypes"]
"""
_DRIVER = """
def run(solution, group, case):
    case.save("y", solution.double(case.inputs["x"]))
"""
_CHECKS = """
import numpy as np
import pytest

from grader.compare import expect_equal, output


{mark}
@pytest.mark.points({points})
def test_{name}(cluster, rng):
    \"\"\"{title}\"\"\"
    x = rng.integers(1, 99, {length}).astype(np.float64)
    with cluster.job(1, "double") as job:
        run = job.run([dict(x=x)])
    expect_equal(output(run.outputs[0], "y", 0), 2 * x, where="on rank 0")
"""
_RIGHT = "def double(x):\n    return 2 * x\n"
_SOURCES = {
    "right": _RIGHT,
    "wrong": "def double(x):\n    return 3 * x\n",
    "half right": "def double(x):\n    return 2 * x if x.size else x.none\n",
    "hanging": "def double(x):\n    while True:\n        pass\n",
    "crashing": "def double(x):\n    return x.no_such_thing\n",
    "forking": "import os\n\ndef double(x):\n    while True:\n        os.fork()\n",
    "killing": "import os\n\ndef double(x):\n    os.kill(-1, 9)\n",
    "refused": f"import ctypes\n\n{_RIGHT}",
    "misnamed": _RIGHT.replace("double", "twice"),
    "broken": "def double(x:\n",
    "Latin-1": f"# \xe4\n{_RIGHT}",
}


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Checkout:
    """A copy of the grader, with problems of the tests' own."""

    root: Path

    def hand_in(self, folder: Path, kinds: Mapping[str, str], problem: str = "27") -> Path:
        """A folder of submissions: by learner, which kind of source they hand in."""
        for who, kind in kinds.items():
            path = folder / who / problem / "solution.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_SOURCES[kind], encoding="latin-1")
        return folder

    def grades(self, target: Path) -> dict[str, dict[str, str]]:
        """The rows of a batch's grades.csv by learner."""
        with (target / "grades.csv").open(newline="", encoding="utf-8-sig") as stream:
            return {row["who"]: row for row in csv.DictReader(stream)}

    def lay_out(self, name: str, checks: str) -> None:
        """Add a problem with these checks."""
        _lay_out_problem(self.root, name, checks=checks)

    def python(self, program: str, *arguments: Path) -> str:
        """Run a Python program that imports this copy; return what it prints."""
        command = [sys.executable, "-c", program, *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=self.root,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "grader.cli", *map(str, arguments)],
            cwd=self.root,
            env={**self._environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path, **environment: str) -> Ended:
        """Run distlab in it."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=240)
        return Ended(process.returncode, out, err)

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if k != "DISTLAB_ENCLOSURE"}
        return {**inherited, "DISTLAB_STATE": str(self.root / "state")}


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    root = tmp_path_factory.mktemp("checkout")
    for package in ("cluster", "grader"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root_folder() / package, root / package, ignore=ignored)
    _lay_out_problem(root, "p27_twice")
    _lay_out_problem(root, "p28_slowly", '@pytest.mark.fault("delay 20ms on all")')
    return Checkout(root)


def _lay_out_problem(
    root: Path, name: str, visible_mark: str = "", *, checks: str | None = None
) -> None:
    """visible_mark: a line above the visible check, worth 8 points; the hidden one is worth 2 and
    builds on it. checks: test_grade.py instead."""
    visible = _CHECKS.format(
        name="numbers", title="Every number is doubled.", points=8, length=5, mark=visible_mark
    )
    hidden = _CHECKS.format(
        name="none",
        title="So is no number at all.",
        points=2,
        length=0,
        mark='@pytest.mark.needs("test_numbers")',
    )
    files = {
        ("problems", "test_grade.py"): checks or visible,
        ("solutions", "test_hidden.py"): "" if checks else hidden,
        ("problems", "problem.toml"): _TOML.format(number=int(name[1:3])),
        ("problems", "driver.py"): _DRIVER,
        ("problems", "stub.py"): "def double(x):\n    raise NotImplementedError\n",
        ("problems", "card.md"): "# For the tests\n",
        ("solutions", "solution.py"): _RIGHT,
    }
    for (half, file), text in files.items():
        path = root / half / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
