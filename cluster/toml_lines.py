"""Find the line of a TOML file that a value came from, for error messages.

The parser of the standard library keeps no positions, so the text is searched for table headers
and keys. Text inside a multi-line string that looks like one can mislead it by some lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)

Location = Sequence[str | int]


def line_of(text: str, location: Location) -> int:
    """Return the 1-based line of the value at `location`, such as ("hosts", 1, "port").

    Where the exact key is not to be found (a missing one, say), the line of the table it belongs
    to; 1 if that cannot be found either.
    """
    wanted = tuple(location)
    best_line, best_length = 1, 0
    for line, path in _positions(text):
        common = len(path) if wanted[: len(path)] == path else 0
        if common > best_length:
            best_line, best_length = line, common
    return best_line


def _positions(text: str) -> list[tuple[int, tuple[str | int, ...]]]:
    """Every header and key with its full path; array tables carry their index."""
    found: list[tuple[int, tuple[str | int, ...]]] = []
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _resolve(_split(header[2]), counts, is_array=header[1] == "[[")
            found.append((number, table))
        elif key := _KEY.match(line):
            found.append((number, (*table, *_split(key[1]))))
    return found


def _resolve(
    names: Sequence[str], counts: dict[tuple[str | int, ...], int], *, is_array: bool
) -> tuple[str | int, ...]:
    path: tuple[str | int, ...] = ()
    for position, name in enumerate(names):
        path = (*path, name)
        if is_array and position == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _split(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.split(r"\s*\.\s*", dotted.strip())]
