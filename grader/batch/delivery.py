"""Where the results of a batch go: to each learner, and in full to the staff."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grader.batch import workplace
from grader.batch.handback import hand_back, report_of
from grader.batch.journal import Journal, Verdict
from grader.learners_copy import learners_copy
from grader.result_json import from_json


@dataclass(frozen=True)
class Delivery:
    """target: folder of what is handed back. for_staff: of the same in full, None for nowhere."""

    target: Path
    for_staff: Path | None
    journal: Journal

    def is_done(self, verdict: Verdict) -> bool:
        return self.journal.is_handed_back(verdict) and self._staff_has(verdict)

    def deliver(self, verdict: Verdict) -> None:
        """Raises NoSpace; nothing is lost then, and it counts as not done."""
        graded = from_json(self.journal.result(verdict)) if verdict.has_result else None
        with workplace.telling_of_trouble(self.target):
            hand_back(self.target, verdict, graded and learners_copy(graded))
        if self.for_staff is not None:
            with workplace.telling_of_trouble(self.for_staff):
                hand_back(self.for_staff, verdict, graded)
        self.journal.handed_back(verdict)

    def _staff_has(self, verdict: Verdict) -> bool:
        """Whole, and not of an earlier grading."""
        if self.for_staff is None:
            return True
        report = report_of(self.for_staff, verdict)
        if not verdict.has_result or not report.exists():
            return False
        return report.with_name("result.json").read_text() == self.journal.result(verdict)
