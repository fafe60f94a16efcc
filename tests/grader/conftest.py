"""Small problem packages, written on the spot and graded for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_TOML = """
number = 90
title = "A package of the tests"
summary = "work(group, x, mode) in as many ways as there are modes"
level = "basic"
topics = ["testing"]
points = {points}
runtime = "{runtime}"
functions = ["work"]

[cluster]
hosts = {hosts}

[limits]
case = {case_s}
load = {load_s}

[refused]
calls = {refused}
"""

_DRIVER = """
def run(solution, group, case):
    case.save("y", solution.work(group, case.inputs["x"], case.params["mode"]))
"""

_CHECKS = """
import numpy as np
import pytest

from grader.ended import Failed

@pytest.mark.parametrize("mode", {modes})
@pytest.mark.points(1)
def test(cluster, mode):
    inputs = [dict(x=np.arange(1000.0) + rank) for rank in range({ranks})]
    with cluster.job({ranks}, mode) as job:
        run = job.run(inputs, dict(mode=mode))
        want = sum(rank["x"] for rank in inputs)
        for rank, outputs in enumerate(run.outputs):
            if not np.array_equal(outputs["y"], want):
                raise Failed("expected the sum, got something else on rank %d" % rank)
"""


@dataclass(frozen=True)
class Package:
    """What a package of the tests is made of. checks: test_grade.py, by default one check for each
    of `modes`, which the sum of all inputs passes. shared: further files, such as model.py."""

    runtime: str
    solution: str
    modes: tuple[str, ...] = ()
    checks: str = ""
    hosts: int = 4
    case_s: float = 3
    load_s: float = 10
    refused: tuple[str, ...] = ()
    driver: str = _DRIVER
    shared: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture(scope="session")
def grade_package(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, dict[str, Any]]]:
    """Grade a package given by the fields of Package; return its checks by mode."""

    def grade(backend: str = "netns", **fields: Any) -> dict[str, dict[str, Any]]:
        package = Package(**fields)
        folder = tmp_path_factory.mktemp("problems") / "p90_testing"
        folder.mkdir()
        wanted = vars(package) | {
            "points": max(1, len(package.modes)),
            "refused": json.dumps(package.refused),
        }
        checks = package.checks or _CHECKS.format(modes=package.modes, ranks=package.hosts)
        for name, text in {
            "problem.toml": _TOML.format(**wanted),
            "driver.py": package.driver,
            **package.shared,
            "test_grade.py": checks,
            "stub.py": "def work(group, x, mode):\n    raise NotImplementedError\n",
            "card.md": "# For the tests\n",
        }.items():
            (folder / name).write_text(text)
        solution = folder.parent / "solution.py"
        solution.write_text(package.solution)
        environment = {**os.environ, "DISTLAB_STATE": str(folder.parent / "state")}
        environment.pop("DISTLAB_ENCLOSURE", None)
        program = Path(__file__).with_name("grade_folder.py")
        done = subprocess.run(
            [sys.executable, str(program), str(folder), str(solution), backend],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["checks"]
        return {c["name"].removeprefix("test[").removesuffix("]"): c for c in found}

    return grade
