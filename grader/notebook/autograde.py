"""Part of nbgrader's autograde: scores from a grading that no learner's code can reach.

nbgrader runs a handed-in notebook in a kernel, with the instructor's rights, and believes what the
cells print. For a distlab notebook no kernel is started: the source of the solution cell is written
to a file, graded on sandboxed hosts by a process of its own, and the scores go straight into the
gradebook. What else the notebook holds decides nothing.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import Execute, SaveAutoGrades
from traitlets import Float

from grader.check_list import listed
from grader.notebook.layout import PICTURE, RUN, SOLUTION, cell_ids
from grader.notebook.picture import frame
from grader.notebook.verdicts import CellVerdict, Verdicts, grade_file
from grader.package import Problem, load, root_folder

_MAGIC = re.compile(r"\A\s*%%writefile[^\n]*\n?")


class GradeOnHosts(Execute):
    """Grades a distlab notebook; executes any other one as nbgrader does."""

    deadline_s = Float(
        1800.0, help="Seconds for one submission; past them its checks are left for a person."
    ).tag(config=True)

    def preprocess(self, nb: Any, resources: Any, km: Any = None) -> tuple[Any, Any]:
        problem = _problem(resources)
        if problem is None:
            nb, resources = super().preprocess(nb, resources, km)
            return nb, resources
        verdicts = self._grade(nb, problem)
        resources["distlab"] = verdicts
        _show(nb, problem, verdicts)
        return nb, resources

    def _grade(self, nb: Any, problem: Problem) -> Verdicts:
        sources = [c.source for c in nb.cells if _grade_id(c) == SOLUTION and c.cell_type == "code"]
        with tempfile.TemporaryDirectory(prefix="distlab-notebook-") as folder:
            path = Path(folder) / "solution.py"
            text = _MAGIC.sub("", sources[0]) if sources else ""
            path.write_bytes(f"{text}\n".encode(errors="replace"))
            return grade_file(problem, path, self.deadline_s)


class SaveVerdicts(SaveAutoGrades):
    """Saves what GradeOnHosts found; a check without a verdict is left for a person."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        nb, resources = super().preprocess(nb, resources)
        problem, verdicts = _problem(resources), resources.get("distlab")
        if problem is not None:
            with Gradebook(self.db_url) as gradebook:
                self._save(gradebook, problem, verdicts)
        return nb, resources

    def _save(self, gradebook: Gradebook, problem: Problem, verdicts: Verdicts) -> None:
        where = (self.notebook_id, self.assignment_id, self.student_id)
        names = {grade_id: name for name, grade_id in cell_ids(problem).items()}
        open_ = 0
        # From the gradebook's list, not the notebook's: what a learner deletes or adds is no grade.
        for grade in gradebook.find_submission_notebook(*where).grades:
            if grade.cell.cell_type != "code":
                continue
            verdict = verdicts.cells.get(names.get(grade.name, ""), CellVerdict(None))
            grade.auto_score = verdict.points
            grade.needs_manual_grade = verdict.points is None or grade.manual_score is not None
            open_ += verdict.points is None
        comment = gradebook.find_comment(SOLUTION, *where)
        note = f" {_counted(open_)} no verdict: grade again, or by hand." if open_ else ""
        comment.auto_comment = f"{verdicts.summary}{note}"
        gradebook.db.commit()


def _problem(resources: Any) -> Problem | None:
    """The problem that the notebook is named after; the name is the gradebook's, not the file's."""
    folder = root_folder() / "problems" / resources["nbgrader"]["notebook"]
    return load(folder) if (folder / "problem.toml").is_file() else None


def _grade_id(cell: Any) -> str:
    return str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))


def _counted(checks: int) -> str:
    return "1 check has" if checks == 1 else f"{checks} checks have"


def _show(nb: Any, problem: Problem, verdicts: Verdicts) -> None:
    """Outputs for the feedback, as the cells would have given them."""
    ids = cell_ids(problem)
    names = {grade_id: name for name, grade_id in ids.items()}
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        grade_id = _grade_id(cell)
        cell.outputs = []
        if grade_id in names and (verdict := verdicts.cells.get(names[grade_id])):
            cell.outputs = _outputs(verdict)
        elif grade_id == RUN:
            cell.outputs = [_printed(verdicts.summary)]
        elif grade_id == PICTURE and verdicts.result is not None:
            page = frame(verdicts.result)
            cell.outputs = [new_output("display_data", data={"text/html": page})]
    there = set(map(_grade_id, nb.cells))
    for check in listed(problem):
        if ids[check.name] not in there and (verdict := verdicts.cells.get(check.name)):
            source = f"# The cell of this check was missing: {check.title}"
            nb.cells.append(new_code_cell(source, outputs=_outputs(verdict)))


def _outputs(verdict: CellVerdict) -> list[Any]:
    if verdict.points is None:
        return [_printed(f"{verdict.text}\nNo verdict; no point is lost.")]
    score = new_output(
        "execute_result", data={"text/plain": repr(verdict.points)}, execution_count=1
    )
    return [score] if verdict.passed else [_printed(verdict.text), score]


def _printed(text: str) -> Any:
    return new_output("stream", name="stdout", text=text + "\n")
