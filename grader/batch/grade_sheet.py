"""The grades of a batch as a CSV file, one row for each learner and problem."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from grader.batch.handback import report_of
from grader.batch.journal import Verdict
from grader.class_folder import Entry
from grader.safe_csv import table
from grader.whole_file import write_whole

HEADINGS = (
    *("who", "problem", "outcome", "score", "max_score", "unjudged_points"),
    *("seconds", "seed", "report", "message"),
)
MISSING = "missing"
PENDING = "not graded yet"


def write(
    path: Path, target: Path, entries: Iterable[Entry], verdicts: dict[Entry, Verdict]
) -> None:
    """Write it anew. It begins with a byte order mark, without which Excel takes it for Latin 1."""
    rows = [_row(path, target, entry, verdicts.get(entry)) for entry in entries]
    write_whole(path, table([HEADINGS, *rows]), "utf-8-sig")


def _row(path: Path, target: Path, entry: Entry, verdict: Verdict | None) -> tuple[str, ...]:
    problem = f"{entry.problem.number:02d}"
    if verdict is None:
        outcome = PENDING if entry.paths else MISSING
        return (entry.who, problem, outcome, *[""] * (len(HEADINGS) - 3))
    report = report_of(target, verdict)
    return (
        entry.who,
        problem,
        verdict.outcome,
        _number(verdict.score),
        _number(verdict.max_score),
        _number(verdict.unjudged),
        f"{verdict.seconds:.1f}",
        verdict.seed,
        os.path.relpath(report, path.absolute().parent),
        verdict.message,
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
