"""A folder with what a class handed in: one folder a person, in it one entry a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.package import Problem


@dataclass(frozen=True)
class HandedIn:
    """One person's work on one problem. path: a .py file, or a folder with solution.py."""

    who: str
    problem: Problem
    path: Path


@dataclass(frozen=True)
class ClassFolder:
    """handed_in: by person and problem. unrecognised: entries that are no such work; nothing
    else is left out."""

    handed_in: tuple[HandedIn, ...]
    unrecognised: tuple[Path, ...]


def read_class(folder: Path, wanted: Sequence[Problem], known: Sequence[Problem]) -> ClassFolder:
    """Read `folder`/WHO/PROBLEM/solution.py, `folder`/WHO/PROBLEM.py and, where `wanted` is a
    single problem, `folder`/WHO/solution.py. PROBLEM: a number, a name, or a folder's name.

    Work on problems that are `known` and not `wanted` is passed over. Links are not followed.
    Raises OSError where the folder cannot be read.
    """
    by_name = {name: problem for problem in known for name in _names(problem)}
    handed_in: list[HandedIn] = []
    unrecognised: list[Path] = []
    for person in sorted(folder.iterdir()):
        if person.is_symlink() or not person.is_dir():
            unrecognised.append(person)
            continue
        if len(wanted) == 1 and _is_file(person / "solution.py"):
            handed_in.append(HandedIn(person.name, wanted[0], person))
            continue
        for entry in sorted(person.iterdir()):
            is_file = entry.suffix == ".py" and _is_file(entry)
            problem = by_name.get(entry.stem if is_file else entry.name)
            is_folder = not entry.is_symlink() and _is_file(entry / "solution.py")
            if problem is None or not (is_file or is_folder):
                unrecognised.append(entry)
            elif problem in wanted:
                handed_in.append(HandedIn(person.name, problem, entry))
    return ClassFolder(tuple(handed_in), tuple(unrecognised))


def _names(problem: Problem) -> set[str]:
    number = problem.number
    return {problem.name, problem.slug, f"{number:02d}", str(number), f"p{number:02d}"}


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
