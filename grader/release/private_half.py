"""What betrays the private half: contents, runs of lines, names, titles of its checks."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from grader.release.byte_code import prints_of_source
from grader.release.contents import TrackedFile

RUN = 4
"""So many telling lines in a row are no chance."""
_MOST_SHARED = 12  # runs; measured: at most 8 in a stub and its reference, 4 in the sample
_FEWEST_WORD_CHARACTERS = 8
_SMALLEST_FILE = 32  # bytes; of smaller ones there are equals everywhere
_MEANT_TO_BE_SHARED = ("stub.py", "sample_submission.py", "test_grade.py")


@dataclass(frozen=True)
class Place:
    """A line of a private file."""

    path: str
    line: int


def telling_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and normal form of each line that says something: no spaces, no marks of comments,
    quotations or patches at its front, no imports."""
    for number, line in enumerate(text.splitlines(), start=1):
        plain = re.sub(r"\s+", "", line).lstrip("#+-><|*")
        if plain.startswith(("import", "from")):
            continue
        if len(re.findall(r"\w", plain)) >= _FEWEST_WORD_CHARACTERS:
            yield number, plain


def runs(text: str) -> Iterator[tuple[int, str]]:
    """Each run of telling lines, with the number of its first."""
    lines = list(telling_lines(text))
    for first in range(len(lines) - RUN + 1):
        yield lines[first][0], "\n".join(line for _, line in lines[first : first + RUN])


class PrivateHalf:
    """What to look for. words: names of hidden checks and of submissions; titles: the hidden
    checks' first sentences; each with the place where it stands."""

    def __init__(self, private: Sequence[TrackedFile], public: Sequence[TrackedFile]) -> None:
        # A line that stands in several files is said to be the reference's, or a hidden check's.
        self._files = sorted(private, key=lambda file: ("/submissions/" in file.path, file.path))
        self._shared = [f for f in public if f.path.endswith(_MEANT_TO_BE_SHARED)]
        self.digests = {
            hashlib.sha256(file.content).hexdigest(): file.path
            for file in reversed(self._files)
            if len(file.content) >= _SMALLEST_FILE
        }
        self.runs = self._telling_runs()
        visible = {name for file in self._shared for name, _, _ in _checks(file)}
        visible_titles = {title for file in self._shared for _, title, _ in _checks(file)}
        hidden = [f for f in self._files if f.path.endswith("/test_hidden.py")]
        checks = [(*check, file.path) for file in hidden for check in _checks(file)]
        self.words = {n: Place(path, line) for n, _, line, path in checks if n not in visible}
        self.words |= {n: Place(path, 1) for n, path in _names_of_submissions(self._files)}
        self.titles = {
            title: Place(path, line)
            for _, title, line, path in checks
            if title and title not in visible_titles
        }

    @cached_property
    def code(self) -> dict[str, str]:
        """Digest of each compiled function -> the file that it stands in."""
        known = set().union(*(prints_of_source(f.content) for f in self._sources(self._shared)))
        found: dict[str, str] = {}
        for file in self._sources(self._files):
            for digest in prints_of_source(file.content) - known:
                found.setdefault(digest, file.path)
        return found

    def _telling_runs(self) -> dict[str, Place]:
        """Runs of the private files, less what a stub or a sample is meant to have in common with
        them. A public file that shares more than that with one of them excuses nothing."""
        shared_by: dict[str, set[str]] = {}
        for file in self._shared:
            for _, run in runs(_text(file)):
                shared_by.setdefault(run, set()).add(file.path)
        found: dict[str, Place] = {}
        excused: set[str] = set()
        for file in self._files:
            mine = list(runs(_text(file)))
            counts = Counter(path for _, run in mine for path in shared_by.get(run, ()))
            too_many = {path for path, count in counts.items() if count > _MOST_SHARED}
            for line, run in mine:
                if shared_by.get(run, set()) - too_many:
                    excused.add(run)
                else:
                    found.setdefault(run, Place(file.path, line))
        return {run: place for run, place in found.items() if run not in excused}

    @staticmethod
    def _sources(files: Iterable[TrackedFile]) -> Iterator[TrackedFile]:
        return (file for file in files if file.path.endswith(".py"))


def _text(file: TrackedFile) -> str:
    return file.content.decode("utf-8-sig", errors="replace")


def _checks(file: TrackedFile) -> Iterator[tuple[str, str, int]]:
    """Name, title and line of each check in a file."""
    for node in ast.parse(file.content).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            about = inspect.cleandoc(ast.get_docstring(node) or "")
            yield node.name, " ".join(about.partition("\n\n")[0].split()), node.lineno


def _names_of_submissions(files: Iterable[TrackedFile]) -> Iterator[tuple[str, str]]:
    for file in files:
        match = re.fullmatch(r"solutions/.*/((?:wrong|right)_\w+)\.py", file.path)
        if match:
            yield match[1], file.path
