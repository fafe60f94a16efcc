"""Where the machine cannot apply faults, the rest is judged and nothing is called a failure."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path

import pytest

GRADEBOOK = "Student,ID,SIS Login ID,Section,Lab (7)\nPoints Possible,,,,100\nAda,1,Ada,x,55\n"


@pytest.fixture(scope="module")
def target(checkout, tmp_path_factory) -> Path:
    """A batch where the kernel has no netem and there is no other engine either."""
    kinds = {"Ada": "right", "Zoe": "half right"}
    folder = checkout.hand_in(tmp_path_factory.mktemp("class") / "class", kinds, "28")
    ended = checkout.run("batch", folder, DISTLAB_NETWORK_ENGINE="none")
    assert ended.code == 3, ended.err
    assert "For a human to look at:" in ended.out
    return folder.with_name("class-graded")


def test_counting_checks_are_judged_and_their_score_is_kept(checkout, target: Path) -> None:
    rows = checkout.grades(target)
    points = ("outcome", "score", "max_score", "unjudged_points")
    assert [rows["Ada"][name] for name in points] == ["unfit", "2", "10", "8"]
    assert [rows["Zoe"][name] for name in points] == ["unfit", "0", "10", "8"]
    result = json.loads((target / "Ada/p28_slowly/result.json").read_text())
    assert [check["outcome"] for check in result["checks"]] == ["unfit", "passed"]


@pytest.mark.parametrize("backend", ["netns", "local"])
def test_grade_ends_as_unfit_and_keeps_the_score(checkout, tmp_path: Path, backend: str) -> None:
    folder = checkout.hand_in(tmp_path, {"Ada": "right"}, "28")
    path = tmp_path / "result.json"
    options = ["--json", path, "--backend", backend]
    ended = checkout.run("grade", "28", folder / "Ada/28", *options, DISTLAB_NETWORK_ENGINE="none")
    assert (ended.code, json.loads(path.read_text())["score"]) == (3, 2)


def test_every_sink_carries_what_was_judged_and_calls_nothing_a_failure(
    checkout, target: Path, tmp_path: Path
) -> None:
    result = target / "Ada/p28_slowly/result.json"
    scope = json.loads(checkout.run("export", "gradescope", result).out)
    assert scope["score"] == 2 and "8 points could not be judged" in scope["output"]
    assert [test.get("status") for test in scope["tests"]] == [None, "passed"]
    prairie = json.loads(checkout.run("export", "prairielearn", result).out)
    assert prairie["gradable"] is False and "2 of 10 points" in prairie["message"]
    line = checkout.run("export", "github-classroom", result).out
    github = json.loads(base64.b64decode(line.removeprefix("result=")))
    assert [(t["status"], t["score"]) for t in github["tests"]] == [("error", 0), ("pass", 2)]
    book, filled = tmp_path / "book.csv", tmp_path / "filled.csv"
    book.write_text(GRADEBOOK)
    options = ["--gradebook", book, "--column", "Lab", "--to", filled]
    canvas = checkout.run("export", "canvas", target, *options)
    assert "left as they were: Ada (8 points not judged); Zoe (8 points not judged)" in canvas.err
    assert list(csv.reader(filled.open()))[2][4] == "55"
