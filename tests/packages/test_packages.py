"""Every problem package that there is: files in order, reference right, each verdict as stated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import cgroup
from cluster.foreign_load import foreign_share, read_load
from grader.check import complaints, prove, run_grading, submissions
from grader.grading_server import GradingServer
from grader.package import Problem, discover

PROBLEMS = discover()
SUBMISSIONS = [(problem, path) for problem in PROBLEMS for path in submissions(problem)]


def skip_where_only_root_can_judge(result: dict[str, Any]) -> None:
    """Skip a test if nothing but the want of control groups kept its checks from passing."""
    not_passed = [c for c in result.get("checks", []) if c["outcome"] not in ("passed", "skipped")]
    out_of_reach = [
        c["name"] for c in not_passed if re.search("needs? control groups", c["message"])
    ]
    if out_of_reach and len(out_of_reach) == len(not_passed) and not cgroup.usable():
        pytest.skip(f"only root can judge {', '.join(out_of_reach)}: it needs control groups")


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_files_of_a_package_are_in_order(problem: Problem) -> None:
    assert not list(complaints(problem))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_reference_earns_full_marks(problem: Problem) -> None:
    if problem.private_folder is None:
        pytest.skip("this release has no solutions/")
    before = read_load()
    result, code = run_grading(problem, problem.private_folder / "solution.py", [])
    left_to_us = 1 - foreign_share(before, read_load())
    skip_where_only_root_can_judge(result)
    not_passed = [c for c in result["checks"] if c["outcome"] != "passed"]
    assert (code, not_passed) == (0, [])
    assert result["score"] == result["max_score"] == problem.points
    assert result["duration_s"] * left_to_us < 60


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_stub_earns_nothing(problem: Problem) -> None:
    result, code = run_grading(problem, problem.folder / "stub.py", [])
    assert (code, result["score"]) == (1, 0)


@pytest.mark.parametrize(
    ("line", "outcome", "says"),
    [
        ("", "failed", "defines no"),
        ("{names} = __file__.no_such_thing", "crashed", "AttributeError"),
        ("def {name}(*_, **__):\n    while True:\n        pass\n", "timed out", "within"),
    ],
    ids=["empty", "raises", "hangs"],
)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_a_file_that_cannot_be_judged_has_an_outcome_of_its_own(
    problem: Problem, tmp_path: Path, line: str, outcome: str, says: str
) -> None:
    names = problem.functions
    text = "\n".join(line.format(name=name, names=" = ".join(names)) for name in names)
    (tmp_path / "solution.py").write_text(text)
    first = re.search(r"^def (test_\w+)", problem.visible_checks.read_text(), re.M)
    assert first is not None
    result, code = run_grading(problem, tmp_path / "solution.py", [first[1]])
    checks = result["checks"]
    assert (code, result["score"]) == (1, 0)
    assert checks[0]["outcome"] == outcome, checks
    assert says in checks[0]["message"]


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[Problem], GradingServer]]:
    """One server at a time: that of the problem whose submissions are being graded."""
    running: list[GradingServer] = []

    def server_of(problem: Problem) -> GradingServer:
        if running and (running[0].problem != problem or not running[0].alive()):
            running.pop().close()
        if not running:
            running.append(GradingServer(problem))
        return running[0]

    yield server_of
    for server in running:
        server.close()


@pytest.mark.parametrize(
    ("problem", "path"), SUBMISSIONS, ids=[f"{p.number:02d}-{s.stem}" for p, s in SUBMISSIONS]
)
def test_a_submission_gets_the_verdict_it_states(
    servers: Callable[[Problem], GradingServer], problem: Problem, path: Path
) -> None:
    verdict = prove(servers(problem), path)
    skip_where_only_root_can_judge(verdict.result)
    assert verdict.complaint is None
