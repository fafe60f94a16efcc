"""`distlab similar` finds copies however they are disguised, and leaves other work alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grader.class_folder import survey
from grader.package import Problem, discover, find
from grader.similar.compare import DEFAULT_PERCENT, Comparison, Entry, compare
from grader.similar.source import read_source

from .disguise import disguised


def distlab_similar(
    *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "COLUMNS": "200", **environment}
    settings.pop("DISTLAB_ENCLOSURE", None)
    return subprocess.run(
        [sys.executable, "-m", "grader.cli", "similar", *arguments],
        cwd=cwd,
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def private(problem: Problem) -> Path:
    assert problem.private_folder is not None
    return problem.private_folder


def texts_of(problem: Problem, pattern: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted(private(problem).glob(f"submissions/{pattern}"))}


def given_out(problem: Problem) -> list[str]:
    return [path.read_text() for path in sorted(problem.folder.glob("*.py"))]


def compared(problem: Problem, paths: dict[str, Path]) -> Comparison:
    entries = [Entry(who, read_source(path)) for who, path in paths.items()]
    return compare(entries, given_out(problem), DEFAULT_PERCENT / 100)


@pytest.mark.parametrize("number", ["03", "11"])
def test_independent_right_submissions_are_not_listed_and_a_disguised_copy_is(
    number: str, tmp_path: Path
) -> None:
    problem = find(number)
    paths = texts_of(problem, "right_*.py")
    assert compared(problem, paths).pairs == ()
    original = next(iter(paths))
    paths["copy"] = tmp_path / "copy.py"
    paths["copy"].write_text(disguised(paths[original].read_text(), problem.functions))
    pairs = compared(problem, paths).pairs
    assert [{pair.left.who, pair.right.who} for pair in pairs] == [{original, "copy"}]
    assert pairs[0].share > 0.8


def test_submissions_made_from_one_another_are_found() -> None:
    """Those of problem 11 are one text with one mistake each."""
    paths = texts_of(find("11"), "wrong_*.py")
    comparison = compared(find("11"), paths)
    assert len(comparison.pairs) == comparison.compared == len(paths) * (len(paths) - 1) // 2


def test_what_a_problem_gives_out_is_no_evidence(tmp_path: Path) -> None:
    problem = find("03")
    sample = problem.folder / "sample_submission.py"
    paths = {"one": sample, "other": problem.folder / "sample_submission.py"}
    comparison = compared(problem, paths)
    assert comparison.pairs == ()
    assert [entry.who for entry in comparison.too_short] == ["one", "other"]
    entries = [Entry(who, read_source(path)) for who, path in paths.items()]
    assert len(compare(entries, [], 0.4).pairs) == 1


def test_passages_are_where_the_texts_agree(tmp_path: Path) -> None:
    own = (
        "def lonely(a, b, c):\n    while a < b and not c:\n        a, b = b - 1, a\n    return a\n"
    )
    (tmp_path / "shared.py").write_text(
        texts_of(find("11"), "right_b*.py")["right_backtracking"].read_text()
    )
    shared = read_source(tmp_path / "shared.py").text
    (tmp_path / "x.py").write_text(own + shared)
    entries = [
        Entry("x", read_source(tmp_path / "x.py")),
        Entry("y", read_source(tmp_path / "shared.py")),
    ]
    pair = compare(entries, [], 0.4).pairs[0]
    left, right = pair.passages
    assert min(passage.start for passage in left) >= len(own)
    covered = sum(passage.end - passage.start for passage in right)
    assert covered > 0.8 * len(shared)
    assert all(0 <= passage.other < len(right) for passage in left)


HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    """Work on problems 03 and 11, with names and contents of every kind."""
    folder = tmp_path / "class of 2026"
    rights = list(texts_of(find("03"), "right_*.py").values())
    copy = disguised(rights[3].read_text(), ["allreduce"])
    for who, text in {
        "Ada Lovelace": rights[0].read_text(),
        "=cmd|'x'!A0": rights[3].read_text(),
        'Эмма "O\'Neil" <b>': copy,
    }.items():
        (folder / who / "03").mkdir(parents=True)
        (folder / who / "03" / "solution.py").write_text(text)
    (folder / "broken").mkdir()
    broken = rights[3].read_text().replace("def ", "def (", 1) + f"\n# {HOSTILE}\n"
    (folder / "broken" / "p03_allreduce_mpi.py").write_text(broken)
    (folder / "broken" / "diary.txt").write_text("x")
    (folder / "latin").mkdir()
    (folder / "latin" / "03.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    (folder / "link").symlink_to(folder / "broken")
    (folder / "stray.zip").write_text("")
    return folder


class Page(HTMLParser):
    """What the tests want to know of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attributes:
            if name == "id" and value:
                assert value not in self.ids
                self.ids.add(value)
            if name == "href" and value:
                self.targets.add(value)
            if name in ("src", "onerror", "srcset"):
                self.loads.append(f"{name}={value}")


def test_a_class_gives_a_table_and_a_page_of_its_own(class_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = distlab_similar(str(class_folder), "--to", str(page), cwd=tmp_path, PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    assert "6 pairs compared, 3 with 40 % or more in common" in done.stdout
    for said in (
        "diary.txt",
        "stray.zip",
        "/link",
        "latin, problem 03: 03.py is not UTF-8",
        "latin, problem 03: too little of its own",
        "broken, problem 03: p03_allreduce_mpi.py is not valid Python",
    ):
        assert said in done.stdout, said
    text = page.read_text()
    parsed = Page(text)
    assert parsed.loads == []
    assert not parsed.tags & {"script", "img", "iframe", "link", "form"}
    assert {target.removeprefix("#") for target in parsed.targets} <= parsed.ids
    assert {"#pair-1", "#pair-2", "#pair-3"} <= parsed.targets
    assert "&lt;img src=x onerror=alert(1)&gt;[U+202E]" in text
    assert "\x1b" not in text
    assert not re.search(r"plagiar|cheat|guilt|suspect", text + done.stdout, re.I)
    again = tmp_path / "again.html"
    distlab_similar(str(class_folder), "--to", str(again), cwd=tmp_path, PYTHONHASHSEED="2")
    assert again.read_bytes() == page.read_bytes()


def test_earlier_years_and_the_reference_are_compared_with_the_class_alone(
    class_folder: Path, tmp_path: Path
) -> None:
    earlier = tmp_path / "2025"
    for who in ("old", "older"):
        (earlier / who).mkdir(parents=True)
        shutil.copy(texts_of(find("03"), "right_t*.py")["right_two_rings"], earlier / who / "3.py")
    (class_folder / "new").mkdir()
    shutil.copy(private(find("03")) / "solution.py", class_folder / "new" / "allreduce_mpi.py")
    (class_folder / "newer").mkdir()
    shutil.copy(earlier / "old" / "3.py", class_folder / "newer" / "p03.py")
    done = distlab_similar(
        str(class_folder), "--against", str(earlier), "--reference", "--problem", "3", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("03 ")]
    assert any("new " in row and "the reference" in row and "100 %" in row for row in rows)
    assert sum("newer" in row and "2025/old" in row for row in rows) == 2
    assert not any("2025/old " in row and "2025/older" in row for row in rows)


def test_every_way_to_hand_in_is_read_and_the_rest_is_named(class_folder: Path) -> None:
    read = survey(class_folder, discover(), [find("03")])
    assert sorted(entry.who for entry in read.entries) == sorted(
        ["=cmd|'x'!A0", "Ada Lovelace", "broken", "latin", 'Эмма "O\'Neil" <b>']
    )
    assert read.strangers == ("broken/diary.txt", "link", "stray.zip")
    (class_folder / "solo").mkdir()
    (class_folder / "solo" / "solution.py").write_text("x = 1\n")
    alone = survey(class_folder, discover(), [find("03")]).entries
    assert [bool(entry.paths) for entry in alone if entry.who == "solo"] == [True]
    both = survey(class_folder, discover(), [find("03"), find("11")])
    assert "solo/solution.py" in both.strangers


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "nowhere cannot be read"),
        (("empty",), "holds no submission"),
        (("empty", "--threshold", "0"), "a percentage from 1 to 100"),
        (("empty", "--problem", "99"), "there is no problem '99'"),
        (("empty", "--to", "no/where.html"), "does not exist"),
        (("empty", "--base", "missing.py"), "missing.py cannot be read"),
        (("empty", "--against", "missing"), "missing cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "empty").mkdir()
    done = distlab_similar(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_copydetect_the_package_to_install_is_named(
    class_folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "path" / "copydetect.py"
    broken.parent.mkdir()
    broken.write_text("raise ModuleNotFoundError(name='copydetect')\n")
    done = distlab_similar(str(class_folder), cwd=tmp_path, PYTHONPATH=str(broken.parent))
    assert done.returncode == 2
    assert "copydetect is not installed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
