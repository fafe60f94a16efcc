"""Each platform gets what its documentation asks for, and never a failure that is none."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from grader.cli import app
from grader.outcome import Outcome
from grader.result import CheckResult, GradeResult, Machine, ProblemInfo, total
from grader.result_json import to_json
from grader.sinks.canvas import BadGradebook, fill
from grader.sinks.github_classroom import result_document

SCHEMAS = Path(__file__).with_name("schemas")
SECRET = "expected 17 at element [3]"
Export = Callable[[str, list[GradeResult]], Any]


def graded(*outcomes: Outcome, hint_cost: float = 0.0, number: int = 3) -> GradeResult:
    """A grading of one check for each outcome, 10 points each, the last one hidden."""
    points = {Outcome.PASSED: 10.0, Outcome.PARTIAL: 5.0}
    checks = tuple(
        CheckResult(
            f"test_{i}",
            f"Check {i} holds.",
            outcome,
            points.get(outcome, 0.0),
            10.0,
            "" if outcome is Outcome.PASSED else SECRET,
            hidden=i == len(outcomes) - 1,
        )
        for i, outcome in enumerate(outcomes)
    )
    outcome, score, max_score = total(checks)
    return GradeResult(
        ProblemInfo(number, f"slug{number}", "A problem", "basic"),
        "solution.py",
        "17",
        Machine(2, 8192, "Linux", "3.11", "", "netns", "uml"),
        "2026-01-01T00:00:00+00:00",
        1.5,
        checks,
        outcome,
        score - hint_cost,
        max_score,
        1 if hint_cost else 0,
        hint_cost,
    )


RESULTS = {
    "full marks": [graded(Outcome.PASSED, Outcome.PASSED)],
    "partial": [graded(Outcome.PASSED, Outcome.PARTIAL, Outcome.FAILED)],
    "hint": [graded(Outcome.PASSED, Outcome.PASSED, hint_cost=3)],
    "timed out": [graded(Outcome.TIMED_OUT, Outcome.SKIPPED)],
    "refused": [graded(Outcome.REFUSED)],
    "partly unfit": [graded(Outcome.PASSED, Outcome.UNFIT, Outcome.FAILED)],
    "partly inconclusive": [graded(Outcome.INCONCLUSIVE, Outcome.PASSED)],
    "two problems": [graded(Outcome.PASSED), graded(Outcome.CRASHED, number=5)],
}


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Run `distlab export SINK` on results."""

    def run(sink: str, results: list[GradeResult]) -> Any:
        paths = []
        for i, result in enumerate(results):
            paths.append(str(tmp_path / f"result{i}.json"))
            Path(paths[-1]).write_text(to_json(result))
        return CliRunner().invoke(app, ["export", sink, *paths])

    return run


def checked(sink: str, document: Any) -> Any:
    schema = json.loads((SCHEMAS / f"{sink}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


@pytest.mark.parametrize("name", RESULTS)
def test_gradescope_takes_it(export: Export, name: str) -> None:
    document = checked("gradescope", json.loads(export("gradescope", RESULTS[name]).stdout))
    assert document["score"] == sum(result.score for result in RESULTS[name])
    for test in document["tests"]:
        outcome = test["extra_data"]["outcome"]
        unjudged = outcome in ("unfit", "inconclusive")
        open_or_right = unjudged or outcome in ("passed", "partial")
        assert (test.get("status") == "failed") != open_or_right
        assert ("score" in test) != unjudged


def test_gradescope_shows_hidden_checks_to_instructors_only(export: Export) -> None:
    document = json.loads(export("gradescope", RESULTS["partial"]).stdout)
    assert [test["visibility"] for test in document["tests"]] == ["visible", "visible", "hidden"]
    assert document["stdout_visibility"] == "hidden"
    assert SECRET not in document["output"] and "Check" not in document["output"]
    assert SECRET in document["tests"][2]["output"]


def test_gradescope_gets_no_score_where_nothing_was_judged(export: Export) -> None:
    ended = export("gradescope", [graded(Outcome.UNFIT, Outcome.INCONCLUSIVE)])
    assert (ended.exit_code, ended.stdout) == (3, "")
    said = "distlab: nothing could be judged, so there is no score to hand over; grade again\n"
    assert ended.stderr == said


@pytest.mark.parametrize("name", RESULTS)
def test_prairielearn_takes_it(export: Export, name: str) -> None:
    document = checked("prairielearn", json.loads(export("prairielearn", RESULTS[name]).stdout))
    assert document["gradable"] == (not name.startswith("partly"))
    if document["gradable"]:
        earned = sum(r.score for r in RESULTS[name]) / sum(r.max_score for r in RESULTS[name])
        assert document["score"] == pytest.approx(earned)
    else:
        assert "score" not in document
        assert "10 points could not be judged" in document["message"]
        assert document["message"].startswith("10 of ")


def test_prairielearn_does_not_tell_what_a_hidden_check_saw(export: Export) -> None:
    document = json.loads(export("prairielearn", RESULTS["partial"]).stdout)
    assert [SECRET in test["message"] for test in document["tests"]] == [False, True, False]


@pytest.mark.parametrize("name", RESULTS)
def test_github_classroom_takes_it(export: Export, name: str) -> None:
    line = export("github-classroom", RESULTS[name]).stdout
    assert line.startswith("result=") and line.count("\n") == 1
    document = checked("github_classroom", json.loads(base64.b64decode(line[len("result=") :])))
    # What the reporter adds up:
    assert sum(test["score"] for test in document["tests"]) == sum(r.score for r in RESULTS[name])
    assert document["max_score"] == sum(r.max_score for r in RESULTS[name])
    expected = "error" if name.startswith("partly") else "fail"
    assert document["status"] == ("pass" if name in ("full marks", "hint") else expected)


def test_github_classroom_calls_what_was_not_judged_an_error_and_no_failure() -> None:
    document = result_document([graded(Outcome.UNFIT, Outcome.INCONCLUSIVE, Outcome.PASSED)])
    assert [test["status"] for test in document["tests"]] == ["error", "error", "pass"]


def test_results_of_several_learners_are_not_added_up(export: Export) -> None:
    twice = [graded(Outcome.PASSED), graded(Outcome.PASSED)]
    ended = export("gradescope", twice)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        "distlab: these are results of several submissions; give those of one learner\n"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file"),
        ("{}", "is not the result of a grading: The result file has schema version None"),
        ("\0", "is not the result of a grading: The result file is not JSON"),
    ],
)
def test_what_is_no_result_is_told_in_a_sentence(
    tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    ended = CliRunner().invoke(app, ["export", "gradescope", str(path)])
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert says in ended.stderr


def test_a_sink_is_one_file(checkout) -> None:
    """And one whose packages are missing is in nobody's way."""
    sinks = checkout.root / "grader" / "sinks"
    (sinks / "own_format.py").write_text(
        "from grader.export import Results, deliver, read\n\n"
        "def command(results: Results) -> None:\n"
        '    """A format of the tests\' own."""\n'
        '    deliver(f"{len(read(results))} results\\n", None)\n'
    )
    (sinks / "needs_more.py").write_text("import no_such_package_anywhere\n")
    (sinks / "no_sink.py").write_text("")
    shown = checkout.run("export", "--help").out
    assert "own-format" in shown and "A format of the tests' own." in shown
    assert "needs-more" not in shown and "no-sink" not in shown
    (checkout.root / "one.json").write_text(to_json(graded(Outcome.PASSED)))
    assert checkout.run("export", "own-format", "one.json").out == "1 results\n"


GRADEBOOK = (
    "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,"
    'Lab 1 (77),"Lab 2, late (78)",Final Score\r\n'
    "    Points Possible,,,,,10.00,50,(read only)\r\n"
    '"Lovelace, Ada",11,S1,ada,"CS ""A""",,7,=1+1\r\n'
    '"Łukasiewicz, Jan",12,S2,=jan,CS,3,,-5\r\n'
    '"Twin, Pat",13,S3,pat1,CS,,,\r\n'
    '"Twin, Pat",14,S4,pat2,CS,,,'
)


def test_canvas_gets_one_column_and_keeps_every_other_byte() -> None:
    filled = fill(GRADEBOOK, "Lab 1", {"ada": 0.84, "=jan": 1.0, "Pat Twin": 0.5, "eve": 1.0})
    expected = GRADEBOOK.replace('"CS ""A""",,7', '"CS ""A""",8.4,7').replace("CS,3,", "CS,10,")
    assert filled.text == expected
    assert (filled.cells, filled.unknown) == (2, ("Pat Twin", "eve"))


@pytest.mark.parametrize("who", ["ADA", "11", "s1", "Lovelace, Ada", "Ada Lovelace"])
def test_canvas_finds_a_learner_by_whatever_names_them(who: str) -> None:
    rows = list(csv.reader(io.StringIO(fill(GRADEBOOK, "78", {who: 1.0}).text)))
    assert [row[6] for row in rows] == ["Lab 2, late (78)", "50", "50", "", "", ""]


def test_canvas_takes_a_gradebook_with_semicolons() -> None:
    text = "Student;ID;SIS Login ID;Section;Lab (7)\nPoints Possible;;;;4,0\nA, B;1;ab;x, y;\n"
    assert fill(text, "Lab", {"ab": 0.5}).text == text.replace("x, y;\n", "x, y;2\n")


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", "Lab", "lacks Student and ID"),
        ("a,b\n1,2\n", "Lab", "lacks Student and ID"),
        (GRADEBOOK, "Lab 9", "the column 'Lab 9' is not there; choose from Lab 1 (77)"),
        (GRADEBOOK, "Final Score", "has no points possible"),
        ('Student,ID\n"open', "Lab", "line 2 is not CSV"),
    ],
)
def test_what_is_no_gradebook_is_told(text: str, column: str, says: str) -> None:
    with pytest.raises(BadGradebook) as told:
        fill(text, column, {})
    assert says in str(told.value)
