"""One batch of all kinds of submissions: each gets its own verdict, and none stops the rest."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.batch.handback import folder_name, who_of
from grader.result_json import from_json

KINDS = {
    "Ada": "right",
    "=HYPERLINK(1)": "right",
    "-rf": "wrong",
    'O\'Brien "Bob"': "half right",
    "new\nline": "right",
    "Łukasz 学生": "right",
    "%41 & $(id)": "wrong",
    "grades.csv": "right",
    "hanging": "hanging",
    "crashing": "crashing",
    "forking": "forking",
    "killing": "killing",
    "refused": "refused",
    "misnamed": "misnamed",
    "broken": "broken",
    "Latin-1": "Latin-1",
}
OUTCOMES = {
    "right": {"passed"},
    "wrong": {"failed"},
    "half right": {"crashed"},
    "hanging": {"timed out"},
    "crashing": {"crashed"},
    "forking": {"crashed", "timed out"},
    "killing": {"crashed"},
    "refused": {"refused"},
    "misnamed": {"failed"},
    "broken": {"mistake"},
    "Latin-1": {"mistake"},
}


@dataclass(frozen=True)
class Batch:
    submissions: Path
    target: Path
    rows: dict[str, dict[str, str]]
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def batch(checkout, tmp_path_factory) -> Batch:
    folder = checkout.hand_in(tmp_path_factory.mktemp("class") / "handed in", KINDS)
    (folder / "late").mkdir()
    (folder / "linked").mkdir()
    (folder / "linked" / "27").symlink_to(folder / "Ada" / "27")
    (folder / "link inside" / "27").mkdir(parents=True)
    (folder / "link inside" / "27" / "solution.py").symlink_to(folder / "Ada/27/solution.py")
    (folder / "empty" / "p27").mkdir(parents=True)
    (folder / "twice" / "27").mkdir(parents=True)
    (folder / "twice" / "twice.py").write_text("")
    (folder / "notes.txt").write_text("")
    ended = checkout.run("batch", folder)
    target = folder.with_name("handed in-graded")
    return Batch(folder, target, checkout.grades(target), ended.code, ended.out, ended.err)


def test_each_submission_gets_its_own_verdict_whatever_the_others_do(batch: Batch) -> None:
    assert batch.code == 0, batch.err
    seen = {who: batch.rows[_inert(who)]["outcome"] for who in KINDS}
    wrong = {who: outcome for who, outcome in seen.items() if outcome not in OUTCOMES[KINDS[who]]}
    assert not wrong, batch.err
    assert {batch.rows[_inert(w)]["score"] for w, kind in KINDS.items() if kind == "right"} == {
        "10"
    }
    assert batch.rows['O\'Brien "Bob"']["score"] == "8"


def test_who_handed_in_nothing_stands_in_the_grades(batch: Batch) -> None:
    assert {batch.rows[who]["outcome"] for who in ("late", "linked")} == {"missing"}
    assert batch.rows["late"]["score"] == ""


def test_what_is_not_recognised_is_named_in_a_sentence(batch: Batch) -> None:
    assert "distlab: not recognised, so not graded: linked/27, notes.txt\n" in batch.err


def test_a_mistake_of_the_learners_has_its_sentence_and_no_score(batch: Batch) -> None:
    said = {
        "broken": "solution.py, line 1: syntax error: '(' was never closed",
        "Latin-1": "Latin-1/27/solution.py is not UTF-8 text; save it as UTF-8",
        "link inside": "link inside/27/solution.py is a link; hand in the file itself",
        "empty": "empty/p27 has no solution.py; put your code there",
        "twice": "problem 27 is handed in more than once: twice/27 and twice/twice.py; leave one "
        "of them",
    }
    for who, sentence in said.items():
        row = batch.rows[who]
        assert (row["outcome"], row["score"], row["message"]) == ("mistake", "", sentence)
        words = (batch.target / row["report"]).read_text()
        assert words == f"mistake: {sentence}\n"


def test_no_cell_is_a_formula(batch: Batch) -> None:
    text = (batch.target / "grades.csv").read_text(encoding="utf-8-sig")
    assert not re.search(r'(^|[,\n])"?[=+@\t\r-]', text)
    assert "\n'=HYPERLINK(1),27,passed," in text
    assert text.count("\n'-rf,27,failed,") == 1


def test_each_learner_gets_a_folder_with_report_and_result(batch: Batch) -> None:
    for who, kind in KINDS.items():
        if "mistake" in OUTCOMES[kind]:
            continue
        folder = batch.target / folder_name(who) / "p27_twice"
        result = from_json((folder / "result.json").read_text())
        assert str(batch.submissions.parent) not in (folder / "report.html").read_text()
        assert result.seed == batch.rows[_inert(who)]["seed"]


@pytest.mark.parametrize("who", [*KINDS, "..", ".git", "a/b\\c:*", "%2F", " x ", "~", "x.", "\x7f"])
def test_a_folder_is_named_so_that_no_shell_or_system_minds(who: str) -> None:
    name = folder_name(who)
    assert who_of(name) == who
    assert re.fullmatch(r"[^/\\:*?\"<>|\x00-\x1f\x7f]+", name)
    assert name[0] not in ".-~= " and name[-1] not in ". " and name != "grades.csv"


def test_a_name_of_any_length_has_a_folder_of_its_own() -> None:
    first, second = (folder_name("学" * 80 + end) for end in "ab")
    assert first != second
    assert max(len(name.encode()) for name in (first, second)) <= 200


def test_the_summary_counts_outcomes_and_names_what_needs_eyes(batch: Batch) -> None:
    rights = list(KINDS.values()).count("right")
    assert re.search(rf"27 +{rights} ", batch.out), batch.out
    assert "refused, p27_twice: refused: The solution uses only what the problem" in batch.out
    assert "hanging" not in batch.out


def test_only_what_has_changed_is_graded_again(batch: Batch, checkout, tmp_path: Path) -> None:
    folder, target = tmp_path / "class", tmp_path / "class-graded"
    shutil.copytree(batch.submissions, folder, symlinks=True)
    shutil.copytree(batch.target, target)
    shutil.copy(folder / "Ada/27/solution.py", folder / "-rf/27/solution.py")
    (target / "Ada" / "p27_twice" / "report.html").unlink()
    ended = checkout.run("batch", folder)
    graded = [line for line in ended.err.splitlines() if " of 10 points" in line]
    assert len(graded) == 1 and "-rf, 27: passed" in graded[0], ended.err
    rows = checkout.grades(target)
    changed = {who for who in rows if rows[who] != batch.rows[who]}
    assert changed == {"'-rf"}


def test_all_of_it_is_graded_again_when_asked(checkout, tmp_path: Path) -> None:
    folder = checkout.hand_in(tmp_path / "class", {"Ada": "right"})
    seeds = []
    for options in ([], ["--again"]):
        assert checkout.run("batch", folder, "--problem", "27", *options).code == 0
        seeds.append(checkout.grades(tmp_path / "class-graded")["Ada"]["seed"])
    assert seeds[0] != seeds[1]


def test_what_a_hidden_check_saw_goes_to_the_staff_alone(checkout, tmp_path: Path) -> None:
    folder = checkout.hand_in(tmp_path / "class", {"Ada": "half right"})
    assert checkout.run("batch", folder).code == 0
    learners = tmp_path / "class-graded" / "Ada" / "p27_twice"
    seed = checkout.grades(learners.parents[1])["Ada"]["seed"]
    ended = checkout.run("batch", folder, "--for-staff", tmp_path / "staff")
    assert ended.code == 0 and checkout.grades(learners.parents[1])["Ada"]["seed"] == seed
    staffs = tmp_path / "staff" / "Ada" / "p27_twice"
    for name in ("result.json", "report.html"):
        assert "has no attribute" in (staffs / name).read_text(), "the positive control"
        assert "has no attribute" not in (learners / name).read_text()
    mine, whole = (from_json((f / "result.json").read_text()) for f in (learners, staffs))
    assert whole.checks[1].jobs and not mine.checks[1].jobs
    assert mine.checks[1].message.endswith("ask your instructor.")
    assert mine.checks[0] == whole.checks[0]
    assert (mine.score, mine.checks[1].points) == (whole.score, whole.checks[1].points) == (8, 0)
    assert checkout.run("batch", folder, "--again").code == 0
    assert checkout.run("batch", folder, "--for-staff", tmp_path / "staff").code == 0
    regraded = from_json((staffs / "result.json").read_text())
    assert regraded.seed == checkout.grades(learners.parents[1])["Ada"]["seed"] != seed


def test_one_problem_needs_no_folder_of_its_own(checkout, tmp_path: Path) -> None:
    folder = checkout.hand_in(tmp_path / "class", {"Ada": "right"})
    for name in ("solution.py", "more.py"):
        shutil.copy(folder / "Ada/27/solution.py", folder / "Ada" / name)
    (folder / "Ada/solution.py").write_text("from more import double as right\n\ndouble = right\n")
    shutil.rmtree(folder / "Ada/27")
    ended = checkout.run("batch", folder, "--problem", "27", "--to", tmp_path / "out")
    assert ended.code == 0 and checkout.grades(tmp_path / "out")["Ada"]["score"] == "10"
    refused = checkout.run("batch", folder)
    assert refused.code == 2 and "lay it out as WHO/NN/solution.py" in refused.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["batch", "nowhere"], "nowhere cannot be read: No such file or directory"),
        (["batch", "class", "--problem", "98"], "there is no problem '98'"),
        (["batch", "class", "--to", "class/graded"], "lies among the submissions"),
        (["batch", "class", "--to", "grader/cli.py"], "grader/cli.py is a file; name another"),
        (["batch", "class", "--for-staff", "class-graded/all"], "lies among what is handed back"),
        (["batch", "class", "--csv", "nowhere/x.csv"], "the folder of nowhere/x.csv does not"),
        (["batch", "class", "--jobs", "999"], "more than this machine's processors; give"),
    ],
)
def test_a_mistake_of_the_instructors_ends_in_a_sentence(
    checkout, arguments: list[str], says: str
) -> None:
    if not (checkout.root / "class").exists():
        checkout.hand_in(checkout.root / "class", {"Ada": "right"})
    ended = checkout.run(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert says in ended.err
    assert not os.path.exists(checkout.root / "class-graded")


def _inert(who: str) -> str:
    return f"'{who}" if who[0] in "=-" else who
