"""What a batch has judged, on disk before anybody is told: a batch that is killed loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Self

from grader.class_folder import Entry
from grader.judged import first_unfulfilled, judged
from grader.outcome import Outcome
from grader.report.plain_text import shortened
from grader.result import GradeResult
from grader.run_folder import NoSpace

MISTAKE = "mistake"
"""Outcome of what cannot be graded before its author has put it right."""
_RETRIED = (Outcome.UNFIT, Outcome.INCONCLUSIVE)
_MESSAGE_WIDTH = 300

_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdict (
    who TEXT NOT NULL,
    problem TEXT NOT NULL,
    digest TEXT NOT NULL,
    outcome TEXT NOT NULL,
    score REAL,
    max_score REAL,
    unjudged REAL,
    seconds REAL NOT NULL,
    seed TEXT NOT NULL,
    message TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (who, problem, digest)
);
CREATE TABLE IF NOT EXISTS handed_back (
    who TEXT NOT NULL,
    problem TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (who, problem)
);
"""


@dataclass(frozen=True)
class Verdict:
    """What is said of one submission. digest: of what was graded. score, max_score, unjudged: None
    where nothing could be judged. seed: "" where nothing was run. message: for people, in one line.
    """

    who: str
    problem: str
    digest: str
    outcome: str
    score: float | None
    max_score: float | None
    unjudged: float | None
    seconds: float
    seed: str
    message: str

    @classmethod
    def of(cls, entry: Entry, digest: str, result: GradeResult) -> Self:
        points = judged([result])
        missed = first_unfulfilled(result)
        message = f"{missed.title} {missed.message}" if missed else ""
        return cls(
            entry.who,
            entry.problem.name,
            digest,
            result.outcome,
            None if points.nothing else points.score,
            points.max_score,
            points.unjudged,
            round(result.duration_s, 3),
            result.seed,
            shortened(message, _MESSAGE_WIDTH),
        )

    @classmethod
    def without_result(
        cls, entry: Entry, digest: str, outcome: str, message: str, seconds: float
    ) -> Self:
        """Of a submission that could not be graded, for the reason given."""
        line = shortened(message, _MESSAGE_WIDTH)
        who, problem = entry.who, entry.problem.name
        return cls(who, problem, digest, outcome, None, None, None, round(seconds, 3), "", line)

    @property
    def has_result(self) -> bool:
        """Whether there is a grading behind it, with a report."""
        return bool(self.seed)

    @property
    def is_final(self) -> bool:
        """False where the machine was in doubt, so that the next batch tries again."""
        return self.outcome not in _RETRIED


_COLUMNS = ", ".join(field.name for field in fields(Verdict))
_PLACES = ", ".join("?" for _ in fields(Verdict))


class Journal:
    """The verdicts of one folder. Each is durable when `keep` returns."""

    def __init__(self, path: Path) -> None:
        """Open or make it. Raises NoSpace."""
        self._path = path
        with self._on_disk():
            self._rows = sqlite3.connect(path, isolation_level=None)
            self._rows.execute("PRAGMA journal_mode = WAL")
            self._rows.execute("PRAGMA synchronous = FULL")
            self._rows.executescript(_SCHEMA)

    def find(self, entry: Entry, digest: str) -> Verdict | None:
        """What was said of this very content."""
        row = self._rows.execute(
            f"SELECT {_COLUMNS} FROM verdict WHERE who = ? AND problem = ? AND digest = ?",
            (entry.who, entry.problem.name, digest),
        ).fetchone()
        return Verdict(*row) if row else None

    def keep(self, verdict: Verdict, result: str) -> None:
        """Store a verdict in place of an earlier one on the same content, and the grading as JSON.

        Raises NoSpace.
        """
        with self._on_disk(), self._at_once():
            self._rows.execute(
                f"REPLACE INTO verdict ({_COLUMNS}, result) VALUES ({_PLACES}, ?)",
                (*astuple(verdict), result),
            )
            self._rows.execute(
                "DELETE FROM handed_back WHERE who = ? AND problem = ?",
                (verdict.who, verdict.problem),
            )

    def result(self, verdict: Verdict) -> str:
        """The grading behind a verdict as JSON; "" where there is none."""
        row = self._rows.execute(
            "SELECT result FROM verdict WHERE who = ? AND problem = ? AND digest = ?",
            (verdict.who, verdict.problem, verdict.digest),
        ).fetchone()
        return str(row[0]) if row else ""

    def is_handed_back(self, verdict: Verdict) -> bool:
        """Whether the files for the learner are those of this verdict."""
        row = self._rows.execute(
            "SELECT digest FROM handed_back WHERE who = ? AND problem = ?",
            (verdict.who, verdict.problem),
        ).fetchone()
        return bool(row) and row[0] == verdict.digest

    def handed_back(self, verdict: Verdict) -> None:
        """Note that they are. Raises NoSpace."""
        with self._on_disk():
            self._rows.execute(
                "REPLACE INTO handed_back VALUES (?, ?, ?)",
                (verdict.who, verdict.problem, verdict.digest),
            )

    def close(self) -> None:
        self._rows.close()

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        self._rows.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._rows.in_transaction:
                self._rows.execute("ROLLBACK")
            raise
        self._rows.execute("COMMIT")

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise NoSpace(
                f"{self._path} cannot be written: {error}; mend that and give the same command "
                "again, which goes on from there"
            ) from None
