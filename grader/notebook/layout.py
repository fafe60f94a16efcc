"""The cells of a problem's notebook, from its card, its stub and its reference."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from grader.check_list import ListedCheck, listed
from grader.package import PackageError, Problem
from grader.report.quantity import points as in_points

SOLUTION, RUN, PICTURE, DESIGN = "solution", "run", "picture", "design"
WRITE_FILE = "%%writefile solution.py"
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
_BEGIN_HIDDEN, _END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"

_WORK = """\
## Your solution

Fill in the next cell and run it: it writes `solution.py`. Then run the cells below it; they grade
that file on emulated hosts and say what is missing. In a terminal, `distlab test {number}` does
the same, and `distlab hint {number}` shows a hint.

Only that cell and your design at the end are graded. The other cells are locked; what you add
around them is yours and is not run when your work is graded.
"""
_RUN = """\
# Grades solution.py with every check that is on this machine; takes a minute or two.
from grader.notebook import checks

run = checks.run("{name}")"""
_PICTURE = """\
# What each rank did, and the bytes that each host sent; for another check: run.picture("test_...")
run.picture()"""
_DESIGN = """\
## Your design

Read by a person. Say what you decided and what you measured, with numbers.
"""
DESIGN_STUB = """\
**Define.** What you decided before you wrote code, and what it had to cost by your formula:

**Instrument.** What you measured, and what it showed:

**Simulate.** Which faults you injected, and what they did to your solution:

**Tune.** What you changed because of a measurement; the figure before and after:"""


@dataclass(frozen=True)
class Cell:
    """One cell. grade_id: nbgrader's name of it. points: set for a cell that is graded.

    locked: the learner cannot change it. stub: what the learner finds between the marks of the
    solution; None for a cell without them.
    """

    kind: str
    grade_id: str
    source: str
    locked: bool = True
    points: float | None = None
    stub: str | None = None


def cell_ids(problem: Problem) -> dict[str, str]:
    """grade_id of the cell of each check, by name. A hidden check's name is not given away."""
    hidden = 0
    ids = {}
    for check in listed(problem):
        hidden += check.hidden
        ids[check.name] = f"hidden_{hidden}" if check.hidden else check.name
    return ids


def cells(problem: Problem) -> tuple[Cell, ...]:
    """All cells. Raises PackageError where the private half is missing."""
    private = problem.private_folder
    if private is None or problem.hidden_checks is None:
        raise PackageError(
            f"{problem.name} has no private half here; build notebooks in the checkout that has "
            "solutions/"
        )
    ids = cell_ids(problem)
    stub = (problem.folder / "stub.py").read_text().rstrip("\n")
    reference = (private / "solution.py").read_text().rstrip("\n")
    notes = (private / "notes.md").read_text().rstrip("\n")
    number = f"{problem.number:02d}"
    return (
        Cell("markdown", "card", (problem.folder / "card.md").read_text().rstrip("\n")),
        Cell("markdown", "work", _WORK.format(number=number).rstrip("\n")),
        Cell(
            "code",
            SOLUTION,
            f"{WRITE_FILE}\n{_BEGIN}\n{reference}\n{_END}",
            locked=False,
            stub=stub,
        ),
        Cell("markdown", "checks", "## The checks"),
        Cell("code", RUN, _RUN.format(name=problem.name)),
        *(_check_cell(check, ids[check.name]) for check in listed(problem)),
        Cell("markdown", "looking", "## What happened on the hosts"),
        Cell("code", PICTURE, _PICTURE),
        Cell(
            "markdown",
            DESIGN,
            f"{_DESIGN}\n{_BEGIN}\n{notes}\n{_END}",
            locked=False,
            points=0.0,
            stub=DESIGN_STUB,
        ),
    )


def _check_cell(check: ListedCheck, grade_id: str) -> Cell:
    call = f'run.score("{check.name}")'
    worth = "1 point" if check.points == 1 else f"{in_points(check.points)} points"
    body = f"{_comment(check.title)}\n{call}"
    if check.hidden:
        worth += " for a check that runs when your work is graded"
        body = f"{_BEGIN_HIDDEN}\n{body}\n{_END_HIDDEN}"
    return Cell("code", grade_id, f"# {worth}\n{body}", points=check.points)


def _comment(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent="# ", subsequent_indent="# ")


def notebook_text(problem: Problem) -> str:
    """The notebook as a file's text, the same for the same files. Raises PackageError."""
    import nbformat

    notebook = nbformat.v4.new_notebook(
        cells=[_node(cell) for cell in cells(problem)],
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    nbformat.validate(notebook)
    text: str = nbformat.writes(notebook)
    return text.rstrip("\n") + "\n"


def _node(cell: Cell) -> Any:
    import nbformat

    marks: dict[str, Any] = {
        "schema_version": 3,
        "grade_id": cell.grade_id,
        "grade": cell.points is not None,
        "locked": cell.locked,
        "solution": not cell.locked,
        "task": False,
    }
    if cell.points is not None:
        marks["points"] = cell.points
    metadata: dict[str, Any] = {"nbgrader": marks}
    if cell.points is not None and cell.kind == "code":
        metadata["tags"] = ["raises-exception"]  # so that Run All goes on past a failed check
    if cell.stub is not None:
        metadata["distlab"] = {"stub": cell.stub}
    make = nbformat.v4.new_code_cell if cell.kind == "code" else nbformat.v4.new_markdown_cell
    identity = cell.grade_id.replace("_", "-")[:64]
    return make(cell.source, id=identity, metadata=metadata)
