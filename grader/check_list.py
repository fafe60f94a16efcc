"""The checks of a problem, read from their files without running them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from grader.package import PackageError, Problem


@dataclass(frozen=True)
class ListedCheck:
    """One check. title: what must hold, a sentence."""

    name: str
    title: str
    points: float
    hidden: bool


def listed(problem: Problem) -> tuple[ListedCheck, ...]:
    """Visible checks, then the hidden ones where they are; both in the order of their file."""
    found = []
    for path, hidden in ((problem.visible_checks, False), (problem.hidden_checks, True)):
        if path is None:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                title, _ = title_and_about(ast.get_docstring(node) or node.name.replace("_", " "))
                found.append(ListedCheck(node.name, title, _points(path, node), hidden))
    return tuple(found)


def title_and_about(docstring: str) -> tuple[str, str]:
    """What a check's docstring says: its first paragraph, and the rest."""
    first, _, rest = docstring.partition("\n\n")
    return " ".join(first.split()), " ".join(rest.split())


def _points(path: Path, node: ast.FunctionDef) -> float:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.points":
            try:
                return float(ast.literal_eval(mark.args[0]))
            except ValueError:
                raise PackageError(
                    f"{path}:{mark.lineno}: the points of {node.name} must be a number"
                ) from None
    return 0.0
