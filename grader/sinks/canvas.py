"""Canvas: fill one column of a gradebook that Canvas has exported, for its import.

Format: the headings that Canvas' own importer asks for (lib/gradebook_importer.rb in
instructure/canvas-lms): learners by Student, ID, SIS User ID, SIS Login ID; assignments as
`Name (id)`; a row with the points possible. Every other cell stays as it is, to the byte.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from grader.export import Graded, Results, To, deliver, read
from grader.judged import judged
from grader.report.plain_text import one_line
from grader.safe_csv import table
from grader.user_mistake import stop

_BY = ("SIS Login ID", "ID", "SIS User ID", "Student")
_NO_ASSIGNMENT = {*_BY, "LastName", "FirstName", "Integration ID", "Root Account", "Section"}
_POINTS = "Points Possible"
_BOM = "\ufeff"


class BadGradebook(Exception):
    """This is no gradebook of Canvas': one sentence for the user."""


@dataclass(frozen=True)
class Row:
    """cells: as they stand in the file, quotes included. end: the line's end."""

    cells: tuple[str, ...]
    end: str

    def value(self, column: int) -> str:
        raw = self.cells[column] if column < len(self.cells) else ""
        quoted = len(raw) > 1 and raw[0] == raw[-1] == '"'
        return raw[1:-1].replace('""', '"') if quoted else raw


@dataclass(frozen=True)
class Filled:
    """The gradebook's new text, and who was graded and is not in it, or is in it twice."""

    text: str
    cells: int
    unknown: tuple[str, ...]


def command(
    results: Results,
    gradebook: Annotated[Path, typer.Option(help="The CSV file that Canvas exported.")],
    column: Annotated[str, typer.Option(help="The assignment: its heading, name or number.")],
    problem: Annotated[
        list[str] | None, typer.Option(help="Count this problem only; again for more.")
    ] = None,
    to: To = None,
) -> None:
    """Canvas' gradebook with one column filled in from a batch's results."""
    try:
        text = gradebook.read_bytes().decode()
    except OSError as error:
        stop(f"{gradebook} cannot be read: {error.strerror}; export the gradebook from Canvas")
    except UnicodeDecodeError:
        stop(f"{gradebook} is not UTF-8 text; export it from Canvas again and do not re-save it")
    scores, left_out = shares(_chosen(read(results), problem or []))
    try:
        filled = fill(text, column, scores)
    except BadGradebook as error:
        stop(f"{gradebook}: {error}")
    deliver(filled.text, to)
    _say(f"{filled.cells} cells filled")
    if left_out:
        _say(f"left as they were: {'; '.join(left_out)}")
    if filled.unknown:
        _say(f"not in the gradebook, or there twice: {'; '.join(filled.unknown)}")


def shares(graded: Sequence[Graded]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Share of all points for each learner whose every problem was judged; who else, and why."""
    wanted = {one.result.problem.number for one in graded}
    scores, left_out = {}, []
    for who in sorted({one.who for one in graded}):
        mine = {one.result.problem.number: one.result for one in graded if one.who == who}
        points = judged(mine.values())
        missing = sorted(wanted - mine.keys())
        if missing:
            numbers = ", ".join(f"{number:02d}" for number in missing)
            left_out.append(f"{one_line(who)} (no result for {numbers})")
        elif points.unjudged:
            left_out.append(f"{one_line(who)} ({points.unjudged:g} points not judged)")
        else:
            scores[who] = points.score / points.max_score if points.max_score else 0.0
    return scores, tuple(left_out)


def fill(text: str, column: str, scores: Mapping[str, float]) -> Filled:
    """Write shares of the points possible into one column. Raises BadGradebook."""
    mark, body = (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)
    delimiter = ";" if re.match(r'"?(Student|LastName)"?;', body) else ","
    rows = _split(body, delimiter)
    heading = [rows[0].value(i).strip() for i in range(len(rows[0].cells))] if rows else []
    if "ID" not in heading or not {"Student", "LastName"} & set(heading):
        raise BadGradebook("the first line lacks Student and ID; export it from Canvas anew")
    target = _column(heading, column)
    possible = next((_points(r.value(target)) for r in rows if _is_points(r)), None)
    if possible is None:
        raise BadGradebook(f"{column} has no points possible; give it some in Canvas, then export")
    places = _places(rows, heading)
    unknown, cells = [], 0
    for who, share in scores.items():
        at = next((found for by in places if (found := by.get(_key(who)))), [])
        if len(at) != 1:
            unknown.append(one_line(who))
            continue
        score = table([[f"{round(share * possible, 4):.10g}"]], delimiter).rstrip("\r\n")
        row = rows[at[0]]
        padded = [*row.cells, *[""] * (target + 1 - len(row.cells))]
        padded[target] = score
        rows[at[0]] = Row(tuple(padded), row.end)
        cells += 1
    joined = "".join(delimiter.join(row.cells) + row.end for row in rows)
    return Filled(mark + joined, cells, tuple(unknown))


def _chosen(graded: Sequence[Graded], problems: Sequence[str]) -> list[Graded]:
    from grader import package

    nameless = [one for one in graded if not one.who]
    if nameless:
        stop("whose result this is cannot be told; give the folder of results of a batch")
    numbers = {package.find(name).number for name in problems}
    chosen = [one for one in graded if not numbers or one.result.problem.number in numbers]
    if not chosen:
        stop(f"no result is of problem {', '.join(problems)}")
    return chosen


def _split(text: str, delimiter: str) -> list[Row]:
    cell = re.compile(rf'("(?:[^"]|"")*"|(?!")[^{delimiter}\r\n]*)({delimiter}|\r\n|\r|\n|\Z)')
    rows: list[Row] = []
    cells: list[str] = []
    at = 0
    while at < len(text):
        match = cell.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise BadGradebook(f"line {line} is not CSV; export it from Canvas anew")
        cells.append(match[1])
        at = match.end()
        if match[2] != delimiter:
            rows.append(Row(tuple(cells), match[2]))
            cells = []
    if cells:
        rows.append(Row((*cells, ""), ""))
    return rows


def _column(heading: Sequence[str], wanted: str) -> int:
    assignments = {i: name for i, name in enumerate(heading) if name not in _NO_ASSIGNMENT}
    found = [
        i
        for i, name in assignments.items()
        if wanted == name
        or ((parts := re.fullmatch(r"(.*) \((\d+)\)", name)) and wanted in parts.groups())
    ]
    if len(found) != 1:
        trouble = "is there more than once" if found else "is not there"
        there = ", ".join(assignments.values())
        raise BadGradebook(f"the column {wanted!r} {trouble}; choose from {there}")
    return found[0]


def _places(rows: Sequence[Row], heading: Sequence[str]) -> list[dict[str, list[int]]]:
    """For each way of naming a learner, the rows by name."""
    numbered = [(i, row) for i, row in enumerate(rows) if i and not _is_points(row)]
    places = [
        _index((row.value(heading.index(by)), i) for i, row in numbered)
        for by in _BY
        if by in heading
    ]
    if "Student" in heading:
        at = heading.index("Student")
        places.append(_index((_turned(row.value(at)), i) for i, row in numbered))
    if {"LastName", "FirstName"} <= set(heading):
        last, first = heading.index("LastName"), heading.index("FirstName")
        for form in ("{1} {0}", "{0}, {1}"):
            names = ((form.format(r.value(last), r.value(first)), i) for i, r in numbered)
            places.append(_index(names))
    return places


def _index(named: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, row in named:
        if name.strip():
            found.setdefault(_key(name), []).append(row)
    return found


def _turned(name: str) -> str:
    """ "Ada Lovelace" for "Lovelace, Ada"."""
    last, comma, first = name.partition(",")
    return f"{first.strip()} {last.strip()}" if comma else name


def _key(name: str) -> str:
    return " ".join(name.split()).casefold()


def _is_points(row: Row) -> bool:
    return row.value(0).strip() == _POINTS


def _points(value: str) -> float | None:
    try:
        points = float(value.strip().replace(",", "."))
    except ValueError:
        return None
    return points if points >= 0 else None


def _say(sentence: str) -> None:
    print(f"distlab: {sentence}", file=sys.stderr)
