"""A grading as text: the verdict, the checks, and what to know about those that did not pass."""

from __future__ import annotations

import io
from pathlib import Path

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grader.outcome import Outcome
from grader.report.hang_words import hang_in_words, source_name, stands_at
from grader.report.message import parts, without_hangs
from grader.report.outcome_mark import tone
from grader.report.plain_text import first_lines, one_line, plain, shortened
from grader.report.quantity import bound_text, counted, holds, points, quantity
from grader.report.verdict import score_in_words, verdict_sentence, what_is_not_judged
from grader.result import CheckResult, Figure, GradeResult, JobRecord

_STYLES = {"good": "green", "bad": "red", "mixed": "yellow", "neutral": "dim"}
MAX_PART_LINES = 30
MAX_PART_CHARS = 3_000
MAX_WAITS = 16


def show(result: GradeResult, console: Console, report_path: Path | None) -> None:
    """Print the result. report_path: the HTML report; None if none was written."""
    page = _Page(console)
    page.verdict(result)
    page.checks(result.checks)
    page.hints(result)
    source = source_name(result.submission)
    for check in result.checks:
        if check.outcome not in (Outcome.PASSED, Outcome.SKIPPED):
            page.explain(check, source)
    page.kept_figures(result.checks)
    if report_path is not None:
        page.path(report_path)


def explained(check: CheckResult, source: str, width: int = 96) -> str:
    """The same words on one check as plain text, for where there is no terminal."""
    # In a notebook's kernel rich would print into the cell instead of the file.
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    _Page(console).explain(check, source)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().strip().splitlines())


class _Page:
    def __init__(self, console: Console) -> None:
        self._console = console

    def verdict(self, result: GradeResult) -> None:
        line = Text()
        line.append(result.outcome.value.capitalize(), style=f"bold {_style(result.outcome)}")
        line.append(f", {points(result.score)} {score_in_words(result)}: ")
        line.append(self._safe(f"{result.problem.number:02d} {one_line(result.problem.title)}"))
        self._console.print(line, highlight=False)
        self._console.print(Text(self._safe(verdict_sentence(result))), highlight=False)
        if missing := what_is_not_judged(result):
            self._console.print(Text(missing), highlight=False)
        self._console.print()

    def checks(self, checks: tuple[CheckResult, ...]) -> None:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("Outcome", no_wrap=True)
        table.add_column("Points", justify="right", no_wrap=True)
        table.add_column("Check", ratio=1, overflow="fold")
        for check in checks:
            title = Text(self._safe(one_line(check.title)))
            if check.hidden:
                title.append(" (hidden)", style="dim")
            table.add_row(
                Text(check.outcome.value, style=_style(check.outcome)),
                f"{points(check.points)} / {points(check.max_points)}",
                title,
            )
        self._console.print(table)
        self._console.print()

    def hints(self, result: GradeResult) -> None:
        if result.hint_cost:
            used = counted(result.hints_used, "hint")
            self._console.print(Text(f"{used} used: {points(-result.hint_cost)} points"))
            self._console.print()

    def explain(self, check: CheckResult, source: str) -> None:
        heading = Text(check.outcome.value.capitalize(), style=f"bold {_style(check.outcome)}")
        heading.append(": ")
        heading.append(self._safe(one_line(check.title)), style="bold")
        self._console.print(heading, highlight=False)
        message = parts(without_hangs(check.message, check.jobs))
        if not message:
            self._indented(Text(check.outcome.meaning))
        for part in message:
            self._part(part.label, part.text)
        for job in check.jobs:
            if job.hang is not None:
                self._console.print()
                self._hang(job, source)
        if check.figures:
            self._console.print()
            self._figures(check.figures)
        self._console.print()

    def kept_figures(self, checks: tuple[CheckResult, ...]) -> None:
        """The bounded figures of passed checks, one line each."""
        bounded = [
            figure
            for check in checks
            if check.outcome is Outcome.PASSED
            for figure in check.figures
            if figure.bound is not None
        ]
        if bounded:
            self._console.print(Text("Measured in the checks that passed", style="bold"))
            self._figures(tuple(bounded))
            self._console.print()

    def path(self, report_path: Path) -> None:
        line = Text(f"Report: {self._safe(plain(str(report_path)))}")
        self._console.print(line, soft_wrap=True, highlight=False)

    def _part(self, label: str, text: str) -> None:
        kept, cut = first_lines(text, MAX_PART_LINES, MAX_PART_CHARS)
        body = Text(self._safe(kept), overflow="fold")
        if cut:
            body.append("\n(more in the report)", style="dim")
        if not label:
            self._indented(body)
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=11, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style="dim"), body)
        self._indented(grid)

    def _hang(self, job: JobRecord, source: str) -> None:
        hang = job.hang
        if hang is None:
            return
        label = one_line(job.label)
        words = hang_in_words(hang, source)
        lines = [f"Why {label or 'the job'} did not end: {words.cause}"]
        lines += [f"- {wait}" for wait in words.waits[:MAX_WAITS]]
        if len(words.waits) > MAX_WAITS:
            lines.append(f"- and {len(words.waits) - MAX_WAITS} more, in the report")
        if words.cycle:
            lines.append(f"{words.cycle.capitalize()}.")
        told = {edge.rank for edge in hang.edges} if len(words.waits) < len(job.ranks) else None
        others = [t for t in job.ranks if told is not None and t.rank not in told and t.stack]
        lines += [f"- rank {trace.rank} stands at {stands_at(trace)}" for trace in others[:8]]
        for line in lines:
            indent = 2 if line.startswith("- ") else 0
            self._hanging(line, indent)

    def _figures(self, figures: tuple[Figure, ...]) -> None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "right", "left", "left"):
            table.add_column(justify="right" if justify == "right" else "left", overflow="fold")
        for figure in figures:
            kept = holds(figure)
            verdict, style = {None: ("", ""), True: ("kept", "green"), False: ("missed", "red")}[
                kept
            ]
            table.add_row(
                Text(self._safe(shortened(figure.name, 44))),
                Text(self._safe(plain(quantity(figure.value, figure.unit)))),
                Text(self._safe(plain(bound_text(figure)))),
                Text(verdict, style=style),
            )
        self._indented(table)

    def _hanging(self, line: str, indent: int) -> None:
        """A list item keeps its later lines under its first word."""
        if not indent:
            self._indented(Text(self._safe(line)))
            return
        grid = Table.grid()
        grid.add_column(width=indent)
        grid.add_column(overflow="fold")
        grid.add_row(line[:indent], Text(self._safe(line[indent:])))
        self._indented(grid)

    def _indented(self, content: Text | Table) -> None:
        self._console.print(Padding(content, (0, 0, 0, 2), expand=False), highlight=False)

    def _safe(self, text: str) -> str:
        """What the terminal's encoding cannot carry becomes an escape, not an error."""
        encoding = self._console.encoding
        return text.encode(encoding, "backslashreplace").decode(encoding)


def _style(outcome: Outcome) -> str:
    return _STYLES[tone(outcome)]
