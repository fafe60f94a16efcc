"""The Python text of a submission, whatever state it is in."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """text: of all its Python files, one after another, with \\n at line ends. files: first line
    (from 0) of each. notes: what is odd about it, for whoever looks at it."""

    text: str
    files: tuple[tuple[int, str], ...]
    notes: tuple[str, ...]

    def place(self, line: int) -> str:
        """File and line number there of a line of `text`, counted from 0."""
        first, name = max(entry for entry in self.files if entry[0] <= line)
        return f"{name}:{line - first + 1}"


class NotComparable(Exception):
    """Why a submission has no text that could be compared."""


def read_source(path: Path) -> Source:
    """The .py files of a submission, solution.py first. Raises NotComparable."""
    paths = [path]
    if path.is_dir():
        found = (p for p in path.rglob("*.py") if p.is_file() and not p.is_symlink())
        paths = sorted(found, key=lambda p: (p.name != "solution.py", p))
    text, files, notes = "", [], []
    try:
        if sum(p.stat().st_size for p in paths) > _MOST_BYTES:
            raise NotComparable("has more than 1 MiB of Python source")
        for file in paths:
            name = str(file.relative_to(path)) if path.is_dir() else file.name
            part, oddities = _read(file)
            files.append((text.count("\n"), name))
            notes += [f"{name} {oddity}" for oddity in oddities]
            text += part if part.endswith("\n") else part + "\n"
    except OSError as error:
        raise NotComparable(f"cannot be read: {error.strerror}") from None
    return Source(text, tuple(files), tuple(notes))


def _read(file: Path) -> tuple[str, list[str]]:
    content, notes = file.read_bytes(), []
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
        notes.append("is not UTF-8")
    text = re.sub(r"\r\n?", "\n", text)
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        notes.append("is not valid Python, and was compared all the same")
    return text, notes
