"""What a cell earns by a grading: nbgrader's traps, and what the machine could not judge."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grader.check_list import listed
from grader.notebook.autograde import GradeOnHosts
from grader.notebook.checks import NotPassed, Run
from grader.notebook.picture import frame
from grader.notebook.verdicts import CellVerdict, Verdicts, grade_file, of_result
from grader.outcome import Outcome
from grader.package import find
from grader.result import (
    CheckResult,
    GradeResult,
    HostTraffic,
    JobRecord,
    Machine,
    ProblemInfo,
    RankTrace,
    Span,
    total,
)

PROBLEM = find("11")
NAMES = [check.name for check in listed(PROBLEM)]


def grading(*checks: CheckResult) -> GradeResult:
    return GradeResult(
        ProblemInfo(11, "topology_aware", "A ring", "advanced"),
        "solution.py",
        "1",
        Machine(2, 4096, "6", "3.11", "", "netns", "kernel"),
        "2025-01-01T00:00:00+00:00",
        1.0,
        checks,
        *total(checks),
    )


def check(name: str, outcome: Outcome, points: float, **more: object) -> CheckResult:
    return replace(CheckResult(name, f"Title of {name}", outcome, points, 12.5), **more)


@pytest.mark.parametrize(("points", "earned"), [(4.6875, 4.6875), (-1.0, 0.0), (99.0, 12.5)])
def test_points_are_a_plain_number_between_nothing_and_the_maximum(points, earned) -> None:
    verdicts = of_result(PROBLEM, grading(check(NAMES[0], Outcome.PARTIAL, points)))
    score = verdicts.cells[NAMES[0]].points
    assert type(score) is float
    assert score == earned


@pytest.mark.parametrize("outcome", [Outcome.UNFIT, Outcome.INCONCLUSIVE])
def test_doubt_about_the_machine_leaves_a_check_and_those_that_need_it_open(outcome) -> None:
    waiting = f"not run, because “Title of {NAMES[0]}” did not pass"
    result = grading(
        check(NAMES[0], outcome, 0.0, message="the machine is busy"),
        check(NAMES[1], Outcome.FAILED, 0.0, message="wrong"),
        check(NAMES[2], Outcome.SKIPPED, 0.0, message=waiting),
        check(NAMES[3], Outcome.SKIPPED, 0.0, message=waiting.replace(NAMES[0], NAMES[1])),
        check(NAMES[4], Outcome.PASSED, 12.5),
    )
    cells = of_result(PROBLEM, result).cells
    assert [cells[name].points for name in NAMES[:6]] == [None, 0.0, None, 0.0, 12.5, None]
    assert "the machine is busy" in cells[NAMES[0]].text
    assert "did not run" in cells[NAMES[5]].text


def test_a_refusal_costs_every_check_and_an_unfit_cluster_none() -> None:
    refused = grading(check("submission", Outcome.REFUSED, 0.0, message="uses networkx on line 3"))
    assert {cell.points for cell in of_result(PROBLEM, refused).cells.values()} == {0.0}
    unfit = grading(check("submission", Outcome.UNFIT, 0.0, message="no namespaces"))
    assert {cell.points for cell in of_result(PROBLEM, unfit).cells.values()} == {None}


def test_past_the_deadline_no_check_has_a_verdict(tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text((PROBLEM.folder / "stub.py").read_text())
    verdicts = grade_file(PROBLEM, file, deadline_s=0.2)
    assert {cell.points for cell in verdicts.cells.values()} == {None}
    assert "not graded within 0.2 s" in verdicts.cells[NAMES[0]].text


def test_a_grader_that_dies_leaves_every_check_open(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")  # no Python starts with it
    file = tmp_path / "solution.py"
    file.write_text((PROBLEM.folder / "stub.py").read_text())
    verdicts = grade_file(PROBLEM, file, deadline_s=60)
    assert {cell.points for cell in verdicts.cells.values()} == {None}


def run_of(**cells: CellVerdict) -> Run:
    return Run("11", Verdicts("", cells))


def test_a_cell_gives_points_prints_what_is_missing_and_is_silent_on_stderr(capsys) -> None:
    name = NAMES[0]
    assert run_of(**{name: CellVerdict(10.0, passed=True)}).score(name) == 10.0
    assert capsys.readouterr() == ("10 of 10 points\n", "")
    score = run_of(**{name: CellVerdict(2.5, "too slow")}).score(name)
    assert repr(score) == "2.5"
    assert capsys.readouterr() == ("too slow\n2.5 of 10 points\n", "")


@pytest.mark.parametrize("points", [0.0, None])
def test_a_cell_without_points_ends_in_the_message_alone(points) -> None:
    with pytest.raises(NotPassed) as caught:
        run_of(**{NAMES[0]: CellVerdict(points, "expected 3\nNext step: look")}).score(NAMES[0])
    assert caught.value._render_traceback_() == ["expected 3", "Next step: look"]


def test_cells_do_not_grade_where_nbgrader_is_not_set_up_for_it(tmp_path, monkeypatch) -> None:
    from grader.notebook import checks

    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(NotPassed, match=re.escape("grader.notebook.course.configure(c)")):
        checks.run("11", str(tmp_path / "solution.py"))


def test_cells_say_when_the_solution_was_not_written_yet(tmp_path: Path) -> None:
    from grader.notebook import checks

    with pytest.raises(NotPassed, match="run the cell with your solution first"):
        checks.run("11", str(tmp_path / "solution.py"))


def test_the_cells_import_no_mpi_and_no_torch() -> None:
    program = (
        "import sys, grader.notebook.checks; "
        "sys.exit(', '.join({'mpi4py', 'torch', 'nbgrader'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_picture_shows_the_job_that_sent_most_in_a_frame_without_scripts() -> None:
    def job(label: str, sent: int) -> JobRecord:
        spans = (Span("communication", "Send", 0.0, 1.0, 1, 0, sent),)
        return JobRecord(
            label, (RankTrace(0, "node1", spans),), (), (HostTraffic("node1", sent, 0, 1, 0),), 1.0
        )

    result = grading(
        check("a", Outcome.PASSED, 12.5, jobs=(job("small job", 10), job("<b>large</b> job", 99))),
        check("b", Outcome.PASSED, 12.5, jobs=(job("other job", 20),)),
    )
    page = frame(result)
    assert page.startswith('<iframe sandbox="" ')
    assert "large" in page
    assert "<b>" not in page
    assert "other job" in frame(result, "b")
    assert "Nothing ran" in frame(None)


def test_other_notebooks_are_executed_as_nbgrader_does(tmp_path: Path) -> None:
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("6 * 7")])
    resources = {"nbgrader": {"notebook": "week1"}, "metadata": {"path": str(tmp_path)}}
    done, _ = GradeOnHosts().preprocess(notebook, resources)
    assert done.cells[0].outputs[0].data["text/plain"] == "42"


def validated(course, tmp_path: Path, source: str) -> str:
    """What a learner reads on pressing Validate."""
    import nbformat

    released = course.folder / "release" / course.problem / f"{course.problem}.ipynb"
    notebook = nbformat.read(released, 4)
    course.fill_in(notebook, source)
    nbformat.write(notebook, tmp_path / released.name)
    (tmp_path / "nbgrader_config.py").write_text(
        (released.parent / "nbgrader_config.py").read_text()
    )
    done = course.command("validate", released.name, cwd=tmp_path)
    return done.stdout + ("" if done.returncode == 0 else done.stderr)


def test_validate_says_what_is_wrong_and_praises_what_is_right(course, tmp_path: Path) -> None:
    private = PROBLEM.private_folder
    wrong = (private / "submissions" / "wrong_returns_a_dict.py").read_text()
    said = validated(course, tmp_path, wrong)
    assert "VALIDATION FAILED ON 10 CELL(S)" in said
    assert "Topology." in said
    right = validated(course, tmp_path, (private / "solution.py").read_text())
    assert "Success! Your notebook passes all the tests." in right, right
