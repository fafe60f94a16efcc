"""A class through nbgrader: released, handed in, collected, graded, told, exported.

Whatever is in a notebook, its scores are those of `distlab grade` on the solution cell's source.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI

from grader.check_list import listed
from grader.notebook.autograde import SaveVerdicts
from grader.notebook.layout import cell_ids
from grader.notebook.verdicts import CellVerdict, Verdicts
from grader.package import find

PROBLEM = find("11")
SOLUTIONS = PROBLEM.private_folder
STUB = (PROBLEM.folder / "stub.py").read_text()
SOURCES = {
    "right": (SOLUTIONS / "solution.py").read_text(),
    "half": (SOLUTIONS / "submissions" / "wrong_fills_one_triangle.py").read_text(),
    "wrong": (SOLUTIONS / "submissions" / "wrong_returns_a_dict.py").read_text(),
}
HANGING = STUB.replace(
    "    raise NotImplementedError",
    '    if text.startswith("<"):\n        raise ValueError\n    while True:\n        pass',
    1,
)
FORGERY = """
import pathlib, sys, types
import grader.notebook
pathlib.Path({marker!r}).write_text("this cell was run")
forged = types.ModuleType("grader.notebook.checks")
forged.run = lambda *arguments: forged
forged.score = lambda name: "as good as it gets"
forged.picture = lambda: None
grader.notebook.checks = sys.modules["grader.notebook.checks"] = forged
"""
IDS, CHECKS = cell_ids(PROBLEM), listed(PROBLEM)


def forge(course, marker: Path, notebook: Any) -> None:
    """Poison the kernel, rewrite the locked cells, raise the points, bring results along."""
    course.fill_in(notebook, STUB)
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if mark.get("grade") and cell.cell_type == "code":
            cell.source, mark["points"] = f"float({mark['points']})", 1000.0
            cell.outputs = [
                nbformat.v4.new_output("execute_result", {"text/plain": "14.0"}, execution_count=1)
            ]
    poison = nbformat.v4.new_code_cell(FORGERY.format(marker=str(marker)))
    notebook.cells.insert(0, poison)


def write_design_and_slip(course, notebook: Any) -> None:
    course.fill_in(notebook, "def parse_topology(text:\n")
    course.cell(notebook, "design").source += "\n\nA binary search over the thresholds."


def tear_out(course, notebook: Any) -> None:
    """No solution, and half of the checks gone."""
    gone = {"solution", "run", *list(IDS.values())[::2]}
    notebook.cells = [
        cell
        for cell in notebook.cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") not in gone
    ]


def graded_by_distlab(source: str, folder: Path) -> dict[str, float]:
    file, result = folder / "solution.py", folder / "result.json"
    file.write_text(source)
    subprocess.run(
        [sys.executable, "-m", "grader.cli", "grade", "11", str(file), "--json", str(result)],
        cwd=folder,
        capture_output=True,
        timeout=200,
        check=False,
    )
    found = json.loads(result.read_text())
    return {"total": found["score"]} | {check["name"]: check["points"] for check in found["checks"]}


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks") / "ran"


@pytest.fixture(scope="module")
def graded(course, marker: Path) -> Any:
    """The course after everybody has handed in and has been graded."""
    for student, source in SOURCES.items():
        course.solve(student, source)
    course.solve("hanging", HANGING)
    course.hand_in("unclosed", lambda notebook: write_design_and_slip(course, notebook))
    course.solve("unfit", SOURCES["right"])
    course.hand_in("forging", lambda notebook: forge(course, marker, notebook))
    course.hand_in("torn", lambda notebook: tear_out(course, notebook))
    api = course.api()
    collected = api.collect(PROBLEM.name)
    assert collected["success"], collected
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("DISTLAB_ENCLOSURE", raising=False)
        for student in sorted(api.get_submitted_students(PROBLEM.name)):
            if student == "unfit":
                environment.setenv("DISTLAB_NETWORK_ENGINE", "none")
            done = api.autograde(PROBLEM.name, student)
            environment.delenv("DISTLAB_NETWORK_ENGINE", raising=False)
            assert done["success"], done
    told = api.generate_feedback(PROBLEM.name)
    assert told["success"], told
    return course


def feedback(course, student: str) -> str:
    return (
        course.folder / "feedback" / student / PROBLEM.name / f"{PROBLEM.name}.html"
    ).read_text()


@pytest.mark.parametrize("student", SOURCES)
def test_scores_are_those_of_distlab_grade(graded, tmp_path: Path, student: str) -> None:
    wanted = graded_by_distlab(SOURCES[student], tmp_path)
    scores = graded.scores(student)
    assert {name: scores[grade_id] for name, grade_id in IDS.items()} == {
        check.name: wanted[check.name] for check in CHECKS
    }
    with graded.api().gradebook as gradebook:
        assert gradebook.find_submission(PROBLEM.name, student).score == wanted["total"]
    assert (wanted["total"] > 0) == (student != "wrong")


def test_a_solution_that_hangs_ends_by_the_graders_deadline(graded) -> None:
    assert {graded.scores("hanging")[grade_id] for grade_id in IDS.values()} == {0.0}
    assert "Timed out" in feedback(graded, "hanging")


def test_a_forged_notebook_gets_what_its_solution_earns_and_is_never_run(graded, marker) -> None:
    assert {graded.scores("forging")[grade_id] for grade_id in IDS.values()} == {0.0}
    assert not marker.exists()


def test_nbgrader_alone_would_have_believed_the_forged_notebook(graded, marker: Path) -> None:
    database = graded.home / "copy.db"
    shutil.copy(graded.folder / "gradebook.db", database)
    config = graded.config()
    del config.Autograde
    config.CourseDirectory.db_url = f"sqlite:///{database}"
    config.CourseDirectory.autograded_directory = "believed"
    api = NbGraderAPI(config=config)
    done = api.autograde(PROBLEM.name, "forging")
    assert done["success"], done
    with api.gradebook as gradebook:
        assert gradebook.find_submission(PROBLEM.name, "forging").score == PROBLEM.points
    assert marker.exists()


def test_cells_that_were_torn_out_earn_nothing_and_are_shown_again(graded) -> None:
    scores = graded.scores("torn")
    assert [scores[grade_id] for grade_id in IDS.values()] == [0.0] * len(IDS)
    assert "defines no" in feedback(graded, "torn")


def test_a_syntax_error_earns_nothing_and_is_named_with_its_line(graded) -> None:
    assert {graded.scores("unclosed")[grade_id] for grade_id in IDS.values()} == {0.0}
    assert "solution.py, line 1: syntax error" in feedback(graded, "unclosed")


def test_what_the_machine_could_not_judge_is_left_for_a_person(graded) -> None:
    scores = graded.scores("unfit")
    by_check = {name: scores[grade_id] for name, grade_id in IDS.items()}
    assert by_check.pop("test_your_order_pays_on_real_links") is None
    assert by_check == {c.name: c.points for c in CHECKS if c.name in by_check}
    assert "1 check has no verdict" in feedback(graded, "unfit")


def test_fractions_of_a_point_reach_the_gradebook(graded) -> None:
    database = graded.home / "fractions.db"
    shutil.copy(graded.folder / "gradebook.db", database)
    verdicts = Verdicts("", {check.name: CellVerdict(check.points / 3) for check in CHECKS})
    where = {"notebook": PROBLEM.name, "assignment": PROBLEM.name, "student": "wrong"}
    resources = {"nbgrader": where | {"db_url": f"sqlite:///{database}"}, "distlab": verdicts}
    SaveVerdicts().preprocess(nbformat.v4.new_notebook(), resources)
    with Gradebook(f"sqlite:///{database}") as gradebook:
        submission = gradebook.find_submission(PROBLEM.name, "wrong")
        assert submission.score == pytest.approx(PROBLEM.points / 3)


def test_the_design_waits_for_a_person_once_something_is_written(graded) -> None:
    assert graded.scores("unclosed")["design"] is None
    assert graded.scores("right")["design"] == 0.0
    assert "No response." in feedback(graded, "right")


def test_feedback_shows_messages_and_traffic(graded) -> None:
    page = feedback(graded, "half")
    assert "one triangle" in page
    assert "Traffic of each host" in feedback(graded, "right")


def test_export_writes_every_score_and_no_formula(graded) -> None:
    with graded.api().gradebook as gradebook:
        gradebook.update_or_create_student("right", last_name="=1+1", first_name="\t@x", email="-a")
    done = graded.command("export", "--to", "grades.csv")
    assert done.returncode == 0, done.stderr
    with (graded.folder / "grades.csv").open(newline="") as stream:
        rows = {row["student_id"]: row for row in csv.DictReader(stream)}
    assert rows["right"]["score"] == "100.0"
    assert rows["half"]["score"] == "67.0"
    assert rows["forging"]["score"] == "0.0"
    assert rows["unfit"]["needs_manual_grade"] == "True"
    assert [rows["right"][k] for k in ("last_name", "first_name", "email")] == [
        "'=1+1",
        "'\t@x",
        "'-a",
    ]
