"""How far a batch has come: a bar on a terminal, else a line for each grading."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from grader.batch.runner import Began, Ended, Event
from grader.report.plain_text import shortened

_NAME_WIDTH = 40


class BatchProgress:
    """Shown on `console` while the block lasts. done: how many of `total` were judged before."""

    def __init__(self, console: Console, done: int, total: int) -> None:
        self._console, self._done, self._total = console, done, total
        self._running: dict[str, float] = {}
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=3600,
        )
        self._task = self._bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, event: Event) -> None:
        name = shortened(event.work.entry.name, _NAME_WIDTH)
        match event:
            case Began():
                self._running[name] = time.monotonic()
            case Ended(verdict=verdict):
                self._running.pop(name, None)
                self._done += 1
                points = ""
                if verdict.score is not None and verdict.max_score is not None:
                    points = f", {verdict.score:g} of {verdict.max_score:g} points"
                line = f"{self._done} of {self._total}: {name}: {verdict.outcome}{points}"
                self._console.print(
                    f"{line} ({verdict.seconds:.0f} s)",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
        self._bar.update(
            self._task, completed=self._done, description=" and ".join(self._running) or "waiting"
        )
