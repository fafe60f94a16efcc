"""Hints that a learner has bought: remembered per problem in the state folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cluster.ledger import state_folder
from grader.package import Problem


@dataclass(frozen=True)
class HintsUsed:
    """How many hints of a problem were shown, and the points they cost together."""

    count: int
    cost: float


def used(problem: Problem) -> HintsUsed:
    """What the learner has spent so far."""
    try:
        count = int(json.loads(_file(problem).read_text())["count"])
    except (OSError, ValueError, KeyError, TypeError):
        count = 0
    count = max(0, min(count, len(problem.hints)))
    return HintsUsed(count, sum(hint.cost for hint in problem.hints[:count]))


def show_next(problem: Problem) -> tuple[int, str] | None:
    """Number and text of the next hint, noted as used; None when all are shown."""
    count = used(problem).count
    if count >= len(problem.hints):
        return None
    path = _file(problem)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"count": count + 1}))
    return count + 1, problem.hints[count].text


def _file(problem: Problem) -> Path:
    return state_folder() / "hints" / f"{problem.name}.json"
