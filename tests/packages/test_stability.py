"""The reference, and each wrong submission on the check that catches it, get the same verdict and
score again and again, beside a program that takes a whole core.

DISTLAB_SOAK_RUNS: how often each is graded, 20 unless set. DISTLAB_SOAK_PROBLEMS: numbers, such as
"03 06"; all unless set.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.check import expectation, submissions
from grader.grading_server import GradingServer
from grader.package import Problem, discover

RUNS = int(os.environ.get("DISTLAB_SOAK_RUNS", "20"))
_WANTED = os.environ.get("DISTLAB_SOAK_PROBLEMS", "").split()
PROBLEMS = [p for p in discover() if not _WANTED or f"{p.number:02d}" in _WANTED]
CASES = [
    (problem, path)
    for problem in PROBLEMS
    if problem.private_folder is not None
    for path in (problem.private_folder / "solution.py", *submissions(problem))
    if not path.stem.startswith("right_")
]


@pytest.fixture
def hog() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


@pytest.mark.soak
@pytest.mark.usefixtures("hog")
@pytest.mark.parametrize(
    ("problem", "path"), CASES, ids=[f"{p.number:02d}-{s.stem}" for p, s in CASES]
)
def test_every_verdict_and_score_is_the_same(problem: Problem, path: Path) -> None:
    only = []
    if path.parent.name == "submissions":
        stated = expectation(path)
        only = [stated.check] if stated.check else []
    seen: Counter[str] = Counter()
    with GradingServer(problem) as server:
        for _ in range(RUNS):
            checks = server.grade(path, only)["checks"]
            verdicts = {c["name"]: (c["outcome"], c["points"]) for c in checks}
            seen[str(verdicts)] += 1
    assert len(seen) == 1, seen
