"""What `distlab notebook build` writes, for every problem there is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config

from grader.check_list import listed
from grader.notebook.layout import WRITE_FILE, cell_ids, notebook_text
from grader.notebook.release import ClearToStub
from grader.package import PackageError, Problem, discover, find

ROOT = Path(__file__).resolve().parents[3]
PROBLEMS = discover()


def distlab(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grader.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Problem], Any]:
    """The notebook that students get, made by nbgrader from the one in notebooks/."""
    folder = tmp_path_factory.mktemp("released")
    config = Config()
    config.CourseDirectory.root = str(ROOT / "notebooks")
    config.CourseDirectory.release_directory = str(folder)
    config.CourseDirectory.db_url = f"sqlite:///{folder / 'gradebook.db'}"
    from grader.notebook.course import configure

    configure(config)
    api = NbGraderAPI(config=config)

    def release(problem: Problem) -> Any:
        done = api.generate_assignment(problem.name)
        assert done["success"], done
        return nbformat.read(folder / problem.name / f"{problem.name}.ipynb", 4)

    return release


def test_notebooks_are_up_to_date() -> None:
    done = distlab("notebook", "build", "--check")
    assert done.returncode == 0, done.stdout
    settings = ROOT / "grader" / "notebook" / "course_files" / "course.txt"
    assert (ROOT / "notebooks" / "nbgrader_config.py").read_text() == settings.read_text()


def test_a_stale_notebook_is_named(tmp_path: Path) -> None:
    assert distlab("notebook", "build", "03", "--to", str(tmp_path)).returncode == 0
    path = tmp_path / "source" / "p03_allreduce_mpi" / "p03_allreduce_mpi.ipynb"
    before = path.read_bytes()
    path.write_text(path.read_text().replace("distlab hint 03", "distlab hint 04"))
    checked = distlab("notebook", "build", "03", "--to", str(tmp_path), "--check")
    assert (checked.returncode, path.name in checked.stdout) == (1, True)
    assert distlab("notebook", "build", "03", "--to", str(tmp_path)).returncode == 0
    assert path.read_bytes() == before


def test_settings_that_an_instructor_changed_are_kept(tmp_path: Path) -> None:
    settings = tmp_path / "nbgrader_config.py"
    settings.write_text("mine")
    assert distlab("notebook", "build", "03", "--to", str(tmp_path)).returncode == 0
    assert settings.read_text() == "mine"


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_learner_gets_the_stub_and_nothing_of_the_private_half(released, problem) -> None:
    notebook = released(problem)
    cells = {c.metadata.nbgrader.grade_id: c for c in notebook.cells if "nbgrader" in c.metadata}
    stub = (problem.folder / "stub.py").read_text().rstrip("\n")
    assert cells["solution"].source == f"{WRITE_FILE}\n{stub}"
    assert cells["card"].source == (problem.folder / "card.md").read_text().rstrip("\n")
    text = nbformat.writes(notebook)
    for check in listed(problem):
        if check.hidden:
            assert check.name not in text
            assert check.title not in text
    private = problem.private_folder
    shown = f"{stub}\n{cells['card'].source}"
    for name in ("solution.py", "notes.md"):
        lines = (private / name).read_text().splitlines()
        assert not [x for x in lines if len(x) > 40 and x in text and x not in shown]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_cells_carry_the_points_of_the_checks(problem: Problem) -> None:
    notebook = nbformat.reads(notebook_text(problem), 4)
    graded = {
        c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points
        for c in notebook.cells
        if c.metadata.nbgrader.grade
    }
    ids = cell_ids(problem)
    assert graded == {ids[c.name]: c.points for c in listed(problem)} | {"design": 0.0}
    assert sum(graded.values()) == problem.points
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_a_cell_without_a_stub_of_its_own_is_cleared_as_nbgrader_does() -> None:
    mark = {"grade": False, "locked": False, "solution": True, "schema_version": 3}
    cell = nbformat.v4.new_code_cell(
        "answer = 42", metadata={"nbgrader": {**mark, "grade_id": "a"}}
    )
    cleared, _ = ClearToStub().preprocess_cell(cell, {"language": "python"}, 0)
    assert cleared.source == "# YOUR CODE HERE\nraise NotImplementedError()"


def test_a_checkout_without_the_private_half_builds_none() -> None:
    public = replace(find("03"), private_folder=None)
    with pytest.raises(PackageError, match="build notebooks in the checkout that has solutions/"):
        notebook_text(public)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("77",), "there is no problem '77'"),
        (("03", "--to", "/proc/nowhere"), "cannot be written"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments: tuple[str, ...], says: str) -> None:
    done = distlab("notebook", "build", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_nbgrader_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['nbformat'] = None; sys.argv = ['distlab', 'notebook', 'build']; "
        "from grader.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install -e '.[class]'" in done.stderr


def test_grading_imports_nothing_of_jupyter() -> None:
    program = (
        "import sys, grader.cli, grader.judge, grader.session; "
        "heavy = {'nbformat', 'nbgrader', 'IPython', 'traitlets', 'jupytext', 'matplotlib'}; "
        "sys.exit(', '.join(heavy & {name.partition('.')[0] for name in sys.modules}) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
