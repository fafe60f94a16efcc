"""Who handed in what is told from names alone, and nothing is left out in silence."""

from __future__ import annotations

import os
from pathlib import Path

from grader.class_folder import Entry, digest, survey
from grader.package import all_names, find


def hand_in(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"# {path}\n")
    return folder


def test_a_problem_goes_by_any_of_its_names(tmp_path: Path) -> None:
    names = ("3", "03", "p03", "allreduce_mpi", "p03_allreduce_mpi")
    hand_in(tmp_path, *(f"folder {name}/{name}/solution.py" for name in names))
    hand_in(tmp_path, *(f"file {name}/{name}.py" for name in names))
    found = survey(tmp_path, [find("03"), find("11")], [])
    assert [len(entry.paths) for entry in found.entries] == [1] * 10
    assert (found.strangers, {entry.problem.number for entry in found.entries}) == ((), {3})


def test_only_what_was_asked_for_is_graded_and_the_rest_is_no_stranger(tmp_path: Path) -> None:
    hand_in(tmp_path, "Ada/03/solution.py", "Ada/11.py", "Ada/99.py", "Zoe/11.py", ".git/03.py")
    found = survey(tmp_path, [find("03")], [find("03")], all_names())
    assert [(entry.who, entry.shown) for entry in found.entries] == [
        ("Ada", "Ada/03"),
        ("Zoe", ""),
    ]
    assert found.strangers == (".git", "Ada/99.py")


def test_a_name_need_not_be_utf_8(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/J\xf6rg"
    os.makedirs(raw + b"/03")
    (entry,) = survey(tmp_path, [find("03")], [find("03")]).entries
    assert (entry.who, entry.shown) == ("J\\xf6rg", "J\\xf6rg/03")
    assert entry.paths[0].is_dir()


def test_the_digest_follows_every_name_and_byte_but_no_link(tmp_path: Path) -> None:
    folder = hand_in(tmp_path, "03/solution.py", "03/more.py").joinpath("03")
    entry = Entry("Ada", find("03"), (folder,))
    seen = [digest(entry)]
    (folder / "link.py").symlink_to("/etc/passwd")
    assert digest(entry) == seen[0]
    for change in (
        lambda: (folder / "more.py").write_text("# other\n"),
        lambda: (folder / "more.py").rename(folder / "less.py"),
        (folder / "less.py").unlink,
    ):
        change()
        seen.append(digest(entry))
    assert len(set(seen)) == len(seen)
