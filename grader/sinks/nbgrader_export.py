"""nbgrader's export as CSV that a spreadsheet cannot take for formulas."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin

COLUMNS = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
    "needs_manual_grade",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(value: object) -> str:
    """As text; what a spreadsheet would calculate gets an apostrophe in front."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


class SafeCsvExport(ExportPlugin):
    """A row for each assignment and student, also for who handed in nothing.

    needs_manual_grade: a person has to look, at the design or at a check without a verdict.
    """

    def export(self, gradebook: Gradebook) -> None:
        """Write `--to`, or grades.csv; `--assignment` and `--student` choose."""
        target = self.to or "grades.csv"
        with open(target, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            for row in self._rows(gradebook):
                writer.writerow([harmless(row[column]) for column in COLUMNS])
        self.log.info("Wrote %s", target)

    def _rows(self, gradebook: Gradebook) -> Iterator[dict[str, Any]]:
        students, assignments = set(map(str, self.student)), set(map(str, self.assignment))
        for assignment in gradebook.assignments:
            for student in gradebook.students:
                if assignments and assignment.name not in assignments:
                    continue
                if not students or student.id in students:
                    yield _row(gradebook, assignment, student)


def _row(gradebook: Gradebook, assignment: Any, student: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "assignment": assignment.name,
        "duedate": assignment.duedate,
        "timestamp": None,
        "student_id": student.id,
        "last_name": student.last_name,
        "first_name": student.first_name,
        "email": student.email,
        "raw_score": 0.0,
        "late_submission_penalty": 0.0,
        "score": 0.0,
        "max_score": assignment.max_score,
        "needs_manual_grade": False,
    }
    try:
        submission = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return row
    penalty = submission.late_submission_penalty or 0.0
    return row | {
        "timestamp": submission.timestamp,
        "raw_score": submission.score,
        "late_submission_penalty": penalty,
        "score": max(0.0, submission.score - penalty),
        "needs_manual_grade": submission.needs_manual_grade,
    }
