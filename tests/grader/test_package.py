"""problem.toml: a wrong value is an error that names file, line and key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grader.package import PackageError, discover, find, load

SOURCE = find("03").folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "p03_allreduce_mpi"
    shutil.copytree(SOURCE, folder)
    return folder


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "problem.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("points = 100", "points = 100\npionts = 3", ":7: unknown key `pionts`"),
        ("hosts = 4", "hosts = 4\nslost = 3", "unknown key `cluster.slost`"),
        ("hosts = 4", "hosts = 40", "`cluster.hosts`"),
        ('level = "basic"', 'level = "easy"', ":4: `level`"),
        ('runtime = "mpi"', "", "`runtime` is missing"),
        ("number = 3", "number = 4", "the folder says 03"),
        ("number = 3", "number = = 3", "line 1"),
    ],
)
def test_a_mistake_is_named(package: Path, old: str, new: str, says: str) -> None:
    edit(package, old, new)
    with pytest.raises(PackageError) as caught:
        load(package)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_line_of_a_wrong_key_is_its_line(package: Path) -> None:
    edit(package, "hosts = 4", "hosts = 4\nslost = 3")
    lines = (package / "problem.toml").read_text().splitlines()
    with pytest.raises(PackageError) as caught:
        load(package)
    assert f":{lines.index('slost = 3') + 1}:" in str(caught.value)


def test_a_problem_is_found_by_number_slug_and_folder() -> None:
    names = ("3", "03", "p03", "allreduce_mpi", "p03_allreduce_mpi")
    assert {find(name).name for name in names} == {"p03_allreduce_mpi"}


def test_an_unknown_problem_lists_the_known() -> None:
    with pytest.raises(PackageError, match=r"there are .*03"):
        find("99")


def test_every_folder_of_problems_is_a_package() -> None:
    folders = {p.name for p in SOURCE.parent.iterdir() if p.is_dir()}
    assert {problem.name for problem in discover()} == folders


def test_a_package_that_is_half_written_is_in_nobodys_way(tmp_path: Path) -> None:
    problems = tmp_path / "problems"
    shutil.copytree(SOURCE, problems / "p03_allreduce_mpi")
    (problems / "p04_half_written").mkdir()
    assert find("3", tmp_path).number == 3
    with pytest.raises(PackageError, match=r"p04_half_written/problem\.toml is missing"):
        find("half_written", tmp_path)
    with pytest.raises(PackageError, match="there are 03, 04"):
        find("5", tmp_path)
