"""Who handed in what: a folder of submissions, read without following a link."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.package import Problem
from grader.submission import SubmissionError, files_of

LAYOUT = "WHO/NN/solution.py, WHO/NN.py, or with one --problem WHO/solution.py"


@dataclass(frozen=True)
class Entry:
    """One learner and one problem. paths: what was handed in, usually one file or folder; none
    where nothing was. shown: its path for people, below the folder of submissions."""

    who: str
    problem: Problem
    paths: tuple[Path, ...] = ()
    shown: str = ""

    @property
    def name(self) -> str:
        """For people: learner and problem."""
        return f"{self.who}, {self.problem.number:02d}"


@dataclass(frozen=True)
class Survey:
    """strangers: what lies in the folder and is nobody's submission, by its path below it."""

    entries: tuple[Entry, ...]
    strangers: tuple[str, ...]


def survey(
    folder: Path,
    known: Sequence[Problem],
    wanted: Sequence[Problem],
    unwanted: Collection[str] = (),
) -> Survey:
    """Every learner with every wanted problem; without any, those that somebody handed in.

    unwanted: names of problems that were not asked for. Raises OSError where the folder cannot be
    read.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    strangers: list[str] = []
    for person in _listed(folder):
        if person.name.startswith(".") or not person.is_dir(follow_symlinks=False):
            strangers.append(readable(person.name))
            continue
        mine = found.setdefault(readable(person.name), {})
        if len(wanted) == 1 and _is_file(Path(person.path) / "solution.py"):
            mine[wanted[0].name] = [Path(person.path)]
            continue
        for item in _listed(Path(person.path)):
            name = _handed_in_as(item)
            problem = next((problem for problem in known if name in problem.names), None)
            if problem is not None:
                mine.setdefault(problem.name, []).append(Path(item.path))
            elif name not in unwanted:
                strangers.append(readable(f"{person.name}/{item.name}"))
    handed_in = {name for mine in found.values() for name in mine}
    problems = wanted or [problem for problem in known if problem.name in handed_in]
    entries = (
        _entry(folder, who, problem, mine.get(problem.name, []))
        for problem in problems
        for who, mine in found.items()
    )
    return Survey(tuple(entries), tuple(strangers))


def digest(entry: Entry) -> str:
    """Of the names and bytes that a grading would take in, whatever they are called above that."""
    seen = hashlib.sha256()
    for path in entry.paths:
        try:
            for name, source in files_of(path).items():
                content = hashlib.sha256(source.read_bytes()).hexdigest()
                seen.update(f"{os.fsencode(name).hex()} {content}\n".encode())
        except (SubmissionError, OSError) as error:  # a mistake of the learner's, told in grading
            seen.update(str(error).encode(errors="surrogateescape"))
    return seen.hexdigest()


def readable(name: str) -> str:
    """A file's name as text that can be stored and printed; names need not be UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _entry(folder: Path, who: str, problem: Problem, paths: list[Path]) -> Entry:
    shown = " and ".join(readable(str(path.relative_to(folder))) for path in paths)
    return Entry(who, problem, tuple(paths), shown)


def _listed(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as items:
        yield from sorted(items, key=lambda item: item.name)


def _handed_in_as(item: os.DirEntry[str]) -> str:
    """What a folder or Python file calls its problem; "" for anything else."""
    if item.is_dir(follow_symlinks=False):
        return item.name
    if item.name.endswith(".py") and item.is_file(follow_symlinks=False):
        return item.name.removesuffix(".py")
    return ""


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
