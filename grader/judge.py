"""What `distlab test` and `distlab grade` do around a grading: enclosure, progress, files."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from cluster import enclosure
from grader import hints
from grader.backend_choice import Place
from grader.outcome import EXIT_INTERRUPTED, EXIT_UNFIT, exit_code
from grader.package import Problem
from grader.run_folder import RunFolder, new_run
from grader.submission import Submission
from grader.whole_file import write_whole

if TYPE_CHECKING:
    from grader.result import CheckResult, GradeResult


@dataclass(frozen=True)
class Wish:
    """One call of `distlab test` or `distlab grade`, its arguments checked."""

    problem: Problem
    submission: Submission
    hidden: bool
    only: frozenset[str]
    json_path: Path | None
    seed: int | None
    place: Place


def judge(wish: Wish, console: Console, errors: Console) -> int:
    """Grade, show the verdict, write the run's files; return the exit code."""
    folder = new_run(wish.problem.name.partition("_")[0])
    try:
        if wish.place.needs_enclosure:
            enclosure.enter()
    except enclosure.EnclosureError as error:
        errors.print(f"distlab: {error}", markup=False, highlight=False, soft_wrap=True)
        return EXIT_UNFIT
    signal.signal(signal.SIGTERM, _as_interrupt)
    # Imported here: numpy starts threads, and an enclosure is entered before there are any.
    from grader.seeds import Seed
    from grader.session import Interrupted, Order, grade, open_stand

    spent = hints.used(wish.problem)
    order = Order(
        wish.problem,
        wish.submission,
        Seed.fresh() if wish.seed is None else Seed(wish.seed),
        wish.hidden,
        wish.only,
        folder.junit,
        spent.count,
        spent.cost,
    )
    try:
        with _progress(errors, wish) as on_check:
            result = grade(order, open_stand(wish.problem, wish.place.factory()), on_check)
    except Interrupted as stopped:
        _write(stopped.partial, folder, wish.json_path, errors)
        errors.print(
            f"distlab: interrupted; what was judged so far is in {folder.path}", markup=False
        )
        return EXIT_INTERRUPTED
    written = _write(result, folder, wish.json_path, errors)
    _show(result, console, folder)
    return exit_code(result.outcome, result.score, result.max_score) if written else EXIT_UNFIT


def show_again(folder: RunFolder, console: Console) -> int:
    """Show a finished run; return its exit code."""
    from grader.report.html import write_html
    from grader.result_json import from_json

    result = from_json(folder.result.read_text())
    write_html(result, folder.report)
    _show(result, console, folder)
    return exit_code(result.outcome, result.score, result.max_score)


def _as_interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _show(result: GradeResult, console: Console, folder: RunFolder) -> None:
    from grader.report.terminal import show

    show(result, console, folder.report)


def _write(result: GradeResult, folder: RunFolder, json_path: Path | None, errors: Console) -> bool:
    """Write a run's files; False, with a sentence, when the disk is full."""
    from grader.report.html import write_html
    from grader.report.perfetto import write_trace
    from grader.result_json import to_json

    try:
        text = to_json(result)
        write_whole(folder.result, text)
        write_html(result, folder.report)
        write_trace(result, folder.trace)
        if json_path is not None:
            write_whole(json_path, text)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else str(error)
        errors.print(
            f"distlab: the result could not be written: {reason}; the verdict follows, "
            "free some space to keep the next one",
            markup=False,
        )
        return False
    return True


class _progress:
    """A line for each check as it ends, and what is running now, on a terminal."""

    def __init__(self, console: Console, wish: Wish) -> None:
        self._total = len(wish.only) or None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Callable[[str, CheckResult | None], None]:
        self._progress.start()
        task = self._progress.add_task("starting the cluster", total=self._total)

        def on_check(name: str, result: CheckResult | None) -> None:
            if result is None:
                self._progress.update(
                    task, description=name.removeprefix("test_").replace("_", " ")
                )
            else:
                self._progress.advance(task)

        return on_check

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
