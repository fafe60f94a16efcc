"""A learner's copy holds what it must, nothing else, and works by itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grader.package import discover, load
from grader.release.contents import ReleaseError, read_checkout
from grader.release.learner_copy import make_copy
from grader.release.readme import dangling_links

from .conftest import commit_all, run_git


def distlab(*arguments: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    """The command of `checkout`, not of the checkout that runs the tests."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("DISTLAB_ENCLOSURE", None)
    return subprocess.run(
        [sys.executable, "-m", "grader.cli", *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


@pytest.fixture(scope="module")
def copy(committed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("copy") / "for learners"
    done = distlab("release", "--to", str(place), "--git", checkout=committed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing of " in done.stdout
    return place


def test_a_copy_holds_each_problem_and_nothing_of_the_private_half(copy: Path) -> None:
    there = files_of(copy)
    for problem in discover():
        assert f"problems/{problem.name}/test_grade.py" in there
    private = re.compile(r"solutions|exploits|oddities|roundtrip|notebooks/|test_hidden\.py$|^\.ci")
    assert [name for name in there if private.search(name)] == []
    assert {"Makefile", "requirements.lock", "bootstrap/demo.py", "grader/cli.py"} <= there.keys()
    assert there["README.md"][0] & 0o777 == 0o644


def test_its_readme_speaks_to_learners_and_every_link_leads_somewhere(copy: Path) -> None:
    text = (copy / "README.md").read_text()
    assert "make demo" in text
    assert "distlab grade NN" in text
    assert not re.search(r"solutions/|distlab (new|check|release|similar)|instructor", text)
    assert list(dangling_links("README.md", text, files_of(copy).keys())) == []
    assert list(dangling_links("README.md", "[a](no/where)", files_of(copy).keys())) == ["no/where"]


def test_chosen_problems_are_those_of_the_table_and_the_demos_goes_along(
    committed: Path, tmp_path: Path
) -> None:
    done = distlab("release", "--to", str(tmp_path / "two"), "--problem", "11", checkout=committed)
    assert done.returncode == 0, done.stderr
    assert "Problem 03 goes along" in done.stdout
    names = [path.name for path in sorted((tmp_path / "two" / "problems").iterdir())]
    assert names == ["p03_allreduce_mpi", "p11_topology_aware"]
    rows = re.findall(r"^\| (\d\d) \|", (tmp_path / "two" / "README.md").read_text(), re.M)
    assert rows == ["03", "11"]


def test_the_same_commit_gives_the_same_bytes_and_one_commit_without_history(
    committed: Path, copy: Path, tmp_path: Path
) -> None:
    checkout = read_checkout(committed)
    problems = [load(committed / "problems" / p.name) for p in discover()]
    made = make_copy(checkout, problems, tmp_path / "again", as_repository=True)
    assert files_of(tmp_path / "again") == files_of(copy)
    assert run_git(copy, "log", "--all", "--format=%H").split() == [made.commit]
    assert run_git(copy, "status", "--porcelain") == ""
    plain = make_copy(checkout, problems, tmp_path / "plain", as_repository=False)
    assert plain.digest == made.digest
    assert not (tmp_path / "plain" / ".git").exists()


def test_what_is_not_committed_is_refused_and_strays_stay_behind(
    checkout: Path, tmp_path: Path
) -> None:
    stray = checkout / "problems" / "p03_allreduce_mpi" / "model.py"
    stray.write_text("# not in git\n")
    done = distlab("release", "--to", str(tmp_path / "to"), checkout=checkout)
    assert done.returncode == 0, done.stderr
    assert f"such as {stray.relative_to(checkout)}" in done.stdout
    assert not (tmp_path / "to" / "problems" / "p03_allreduce_mpi" / "model.py").exists()
    (checkout / "Makefile").write_text("changed")
    done = distlab("release", "--to", str(tmp_path / "other"), checkout=checkout)
    assert done.returncode == 2
    assert "Makefile differs from the commit" in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_leak_refuses_the_release_by_file_and_line_and_leaves_nothing(
    checkout: Path, tmp_path: Path
) -> None:
    reference = checkout / "solutions" / "p11_topology_aware" / "solution.py"
    with (checkout / "grader" / "auc.py").open("a") as stream:
        stream.write("\n".join(f"# {line}" for line in reference.read_text().splitlines()[20:60]))
    commit_all(checkout)
    done = distlab("release", "--to", str(tmp_path / "new" / "to"), checkout=checkout)
    assert done.returncode == 2
    assert re.search(r"grader/auc\.py:\d+ has \d+ lines or more of solutions/p11", done.stdout)
    assert len(done.stderr.strip().splitlines()) == 1
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_is_overwritten(committed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("work")
    done = distlab("release", "--to", str(tmp_path), checkout=committed)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    assert distlab("release", "--to", str(tmp_path / "empty"), checkout=committed).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say --to DIR"),
        (("--to", "a", "--scan", "b"), "say --to DIR"),
        (("--scan", "no/where"), "is not a folder"),
        (("--to", "README.md"), "is not a folder"),
        (("--to", "/proc/nowhere/x"), "cannot be written"),
        (("--to", "a", "--problem", "99"), "there is no problem '99'"),
    ],
)
def test_a_mistake_is_one_sentence(committed: Path, arguments: tuple[str, ...], says: str) -> None:
    done = distlab("release", *arguments, checkout=committed)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_folder_without_git_cannot_be_released(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no git checkout"):
        read_checkout(tmp_path)


def test_the_copy_knows_that_it_is_one(copy: Path, tmp_path: Path) -> None:
    done = distlab("release", "--to", str(tmp_path / "x"), checkout=copy)
    assert (done.returncode, "learner's copy already" in done.stderr) == (2, True)
    done = distlab("check", "03", checkout=copy)
    assert done.returncode == 0, done.stderr
    assert "only its public files were looked at" in done.stdout


def test_the_demo_of_the_copy_grades_by_the_copys_own_code(copy: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"DISTLAB_RUNS": str(tmp_path / "runs"), "DISTLAB_STATE": str(tmp_path / "s")}
    environment.pop("DISTLAB_ENCLOSURE", None)
    imported = subprocess.run(
        [sys.executable, "-c", "import grader, cluster; print(grader.__file__, cluster.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert imported.stdout.count(f"{copy}/") == 2
    done = subprocess.run(
        [sys.executable, str(copy / "bootstrap" / "demo.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"^(Partial|Passed), \d+ of 90 points that are judged here", done.stdout, re.M)
    assert "Hidden checks are worth 10 more; your instructor runs them." in done.stdout
    page = (tmp_path / "runs" / "latest" / "report.html").read_text()
    assert "of 90 points that are judged here" in page
    assert "Hidden checks are worth 10 more" in page
