"""Cells of CSV files that people open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell must not begin with: a spreadsheet would compute it."""


def inert(value: str) -> str:
    """The value with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{value}" if value.startswith(_FORMULA) else value


def table(rows: Iterable[Sequence[str]], delimiter: str = ",") -> str:
    """Rows as CSV, every cell inert, quoted where it must be."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerows(
        [inert(value) for value in row] for row in rows
    )
    return text.getvalue()
