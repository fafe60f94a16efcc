"""What came of a batch, for whoever started it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from grader.batch.grade_sheet import MISSING, PENDING
from grader.batch.journal import MISTAKE, Verdict
from grader.class_folder import Entry
from grader.outcome import Outcome
from grader.report.plain_text import shortened

_ORDER = (*reversed(Outcome), MISTAKE, MISSING, PENDING)
_FOR_A_HUMAN = (Outcome.REFUSED, Outcome.UNFIT, Outcome.INCONCLUSIVE, MISTAKE)
_WIDTH = 160


def show(entries: Sequence[Entry], verdicts: Mapping[Entry, Verdict], console: Console) -> None:
    """A table of outcomes by problem, then what a human has to look at."""
    counts: dict[str, Counter[str]] = {}
    for entry in entries:
        verdict = verdicts.get(entry)
        outcome = verdict.outcome if verdict else PENDING if entry.paths else MISSING
        counts.setdefault(f"{entry.problem.number:02d}", Counter())[outcome] += 1
    seen = [outcome for outcome in _ORDER if any(count[outcome] for count in counts.values())]
    grid = Table(box=None, pad_edge=False)
    grid.add_column("problem", no_wrap=True)
    for outcome in seen:
        grid.add_column(outcome, justify="right", no_wrap=True)
    for number, count in counts.items():
        grid.add_row(number, *(str(count[outcome] or "") for outcome in seen))
    console.print(grid)
    looked_at = [v for entry in entries if (v := verdicts.get(entry)) and _needs_eyes(v)]
    if looked_at:
        console.print("\nFor a human to look at:")
    for verdict in looked_at:
        line = f"{verdict.who}, {verdict.problem}: {verdict.outcome}: {verdict.message}"
        console.print(f"  {shortened(line, _WIDTH)}", markup=False, highlight=False, soft_wrap=True)


def _needs_eyes(verdict: Verdict) -> bool:
    return verdict.outcome in _FOR_A_HUMAN
