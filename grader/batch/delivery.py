"""Where the results of a batch go: to each learner, and in full to the staff."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grader.batch import workplace
from grader.batch.handback import folder_of, hand_back
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
        staff_has_it = self.for_staff is None or folder_of(self.for_staff, verdict).exists()
        return staff_has_it and self.journal.is_handed_back(verdict)

    def deliver(self, verdict: Verdict) -> None:
        """Raises NoSpace; nothing is lost then, and it counts as not done."""
        graded = from_json(self.journal.result(verdict)) if verdict.has_result else None
        with workplace.telling_of_trouble(self.target):
            hand_back(self.target, verdict, graded and learners_copy(graded))
        if self.for_staff is not None:
            with workplace.telling_of_trouble(self.for_staff):
                hand_back(self.for_staff, verdict, graded)
        self.journal.handed_back(verdict)
