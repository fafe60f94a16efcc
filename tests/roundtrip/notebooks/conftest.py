"""A real nbgrader course in a temporary folder: exchange, gradebook, students."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader.apps import NbGraderAPI
from traitlets.config.loader import Config, PyFileConfigLoader

PROBLEM = "p11_topology_aware"


@dataclass
class Course:
    """One course. home: what its students' and instructor's programs take for the home folder."""

    folder: Path
    exchange: Path
    home: Path
    environment: dict[str, str]
    problem: str = PROBLEM

    def config(self, *, assignment_dir: Path | None = None) -> Config:
        config = PyFileConfigLoader("nbgrader_config.py", str(self.folder)).load_config()
        config.CourseDirectory.root = str(self.folder)
        config.Exchange.root = str(self.exchange)
        config.Exchange.cache = str(self.home / "cache")
        if assignment_dir is not None:
            config.Exchange.assignment_dir = str(assignment_dir)
        return config

    def api(self, **settings: Any) -> NbGraderAPI:
        return NbGraderAPI(config=self.config(**settings))

    def command(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `nbgrader ARGUMENTS`, as people do."""
        program = str(Path(sys.executable).with_name("nbgrader"))
        return subprocess.run(
            [program, *arguments],
            cwd=cwd or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def hand_in(self, student: str, change: Callable[[Any], None]) -> None:
        """Fetch the assignment, let `change` work on the notebook, and submit it."""
        place = self.home / student
        place.mkdir()
        api = self.api(assignment_dir=place)
        api.coursedir.assignment_id, api.coursedir.student_id = PROBLEM, student
        given = {"coursedir": api.coursedir, "authenticator": api.authenticator, "parent": api}
        api.exchange.FetchAssignment(**given).start()
        path = place / PROBLEM / f"{PROBLEM}.ipynb"
        notebook = nbformat.read(path, 4)
        change(notebook)
        nbformat.write(notebook, path)
        api.exchange.Submit(**given).start()

    def solve(self, student: str, source: str) -> None:
        """Hand in a notebook with the solution cell filled in, and nothing else done."""
        self.hand_in(student, lambda notebook: self.fill_in(notebook, source))

    def fill_in(self, notebook: Any, source: str) -> None:
        self.cell(notebook, "solution").source = f"%%writefile solution.py\n{source}"

    def cell(self, notebook: Any, grade_id: str) -> Any:
        marks = ((cell, cell.metadata.get("nbgrader", {})) for cell in notebook.cells)
        return next(cell for cell, mark in marks if mark.get("grade_id") == grade_id)

    def scores(self, student: str, assignment: str = PROBLEM) -> dict[str, float | None]:
        """What the gradebook holds, by the grade_id of the cell; None: left for a person."""
        with self.api().gradebook as gradebook:
            submission = gradebook.find_submission(assignment, student)
            return {
                grade.name: None if grade.needs_manual_grade else grade.auto_score
                for notebook in submission.notebooks
                for grade in notebook.grades
            }


@pytest.fixture(scope="session", autouse=True)
def programs_beside_python() -> Iterator[None]:
    """nbgrader starts alembic by name, as in a virtual environment that is activated."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def make_course(
    programs_beside_python: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Course]:
    """Builds a course with PROBLEM in it, as the README says."""

    def make() -> Course:
        folder, exchange, home = (
            tmp_path_factory.mktemp(n) for n in ("course", "exchange", "home")
        )
        exchange.chmod(0o777)
        environment = {k: v for k, v in os.environ.items() if k != "DISTLAB_ENCLOSURE"}
        environment |= {"HOME": str(home), "DISTLAB_STATE": str(home / "state")}
        environment |= {"JUPYTER_PLATFORM_DIRS": "1", "NO_COLOR": "1"}
        course = Course(folder, exchange, home, environment)
        distlab = str(Path(sys.executable).with_name("distlab"))
        build = [distlab, "notebook", "build", "11", "--to", str(folder)]
        subprocess.run(build, env=environment, check=True, capture_output=True, timeout=60)
        done = course.command("generate_assignment", PROBLEM)
        assert done.returncode == 0, done.stderr
        released = course.api().release_assignment(PROBLEM)
        assert released["success"], released
        return course

    return make


@pytest.fixture(scope="session")
def course(make_course) -> Course:
    return make_course()
