"""The HTML report of one grading: a single file that asks the network for nothing."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from grader.outcome import Outcome
from grader.report import quantity
from grader.report.bars import figure_bar, share_bar
from grader.report.hang_picture import hang_svg
from grader.report.hang_words import HangWords, hang_in_words, source_name, stands_at
from grader.report.lanes import KINDS, Tally, job_end, tally
from grader.report.message import Part, parts, without_hangs
from grader.report.outcome_mark import mark, tone
from grader.report.plain_text import first_lines, last_chars, one_line, plain
from grader.report.policy import policy
from grader.report.timeline import pattern_defs, swatch, timeline_svg
from grader.report.verdict import (
    counted_outcomes,
    score_in_words,
    verdict_sentence,
    what_is_not_judged,
)
from grader.result import CheckResult, Figure, GradeResult, HostTraffic, JobRecord

BLOCKS_PER_REPORT = 4_000
MESSAGE_CHARS = 4_000
OUTPUT_CHARS_PER_REPORT = 300_000
OUTPUT_CHARS_PER_JOB = 60_000
HERE = Path(__file__).parent


@dataclass(frozen=True)
class FigureRow:
    figure: Figure
    value: str
    bound: str
    holds: bool | None
    bar: Markup


@dataclass(frozen=True)
class TrafficRow:
    traffic: HostTraffic
    sent_bar: Markup
    received_bar: Markup


@dataclass(frozen=True)
class HangView:
    words: HangWords
    has_cycle: bool
    stands: tuple[tuple[int, str], ...]
    picture: Markup


@dataclass(frozen=True)
class JobView:
    job: JobRecord
    timeline: Markup
    tallies: tuple[Tally, ...]
    kinds: tuple[str, ...]
    traffic: tuple[TrafficRow, ...]
    hang: HangView | None
    output: str
    output_left_out: int


@dataclass(frozen=True)
class CheckView:
    check: CheckResult
    key: str
    message: tuple[Part, ...]
    figures: tuple[FigureRow, ...]
    jobs: tuple[JobView, ...]


def write_html(result: GradeResult, path: Path) -> None:
    path.write_text(render(result), encoding="utf-8")


def render(result: GradeResult) -> str:
    """The whole page. Everything from the result is made plain, then escaped."""
    css = (HERE / "report.css").read_text(encoding="utf-8")
    job_count = max(sum(len(check.jobs) for check in result.checks), 1)
    views = tuple(
        _check_view(check, f"check-{place}", source_name(result.submission), job_count)
        for place, check in enumerate(result.checks, start=1)
    )
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            result=result,
            checks=views,
            verdict=verdict_sentence(result),
            not_judged=what_is_not_judged(result),
            score_in_words=score_in_words(result),
            summary=counted_outcomes(result.checks),
            css=Markup(css),
            policy=policy(css),
            pattern_defs=Markup(pattern_defs()),
            replay=replay_command(result),
        )
    )


def render_job(result: GradeResult, check: CheckResult, job: JobRecord) -> str:
    """A page with one job alone: its timeline with the faults, its traffic, why it hangs."""
    css = (HERE / "report.css").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("one_job.html.j2")
        .render(
            title=check.title,
            view=_job_view(job, "job", source_name(result.submission), 1),
            css=Markup(css),
            policy=policy(css),
            pattern_defs=Markup(pattern_defs()),
        )
    )


def replay_command(result: GradeResult) -> str:
    """The command that grades the same file with the same inputs again."""
    file = shlex.quote(one_line(result.submission))
    return f"distlab grade {result.problem.number:02d} {file} --seed {one_line(result.seed)}"


def with_code(text: str) -> Markup:
    """Escaped, with what stands between backticks set as code."""
    marked = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(plain(text))))
    return Markup(marked)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain_unless_markup,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        mark=lambda outcome: Markup(mark(outcome)),
        swatch=lambda kind: Markup(swatch(kind)),
        tone=tone,
        with_code=with_code,
        counted=quantity.counted,
        seconds=quantity.seconds,
        size=quantity.size,
        points=quantity.points,
        one_line=one_line,
        KINDS=KINDS,
        Outcome=Outcome,
    )
    return environment


def _plain_unless_markup(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _check_view(check: CheckResult, key: str, source: str, job_count: int) -> CheckView:
    return CheckView(
        check=check,
        key=key,
        message=tuple(_cut(part) for part in parts(without_hangs(check.message, check.jobs))),
        figures=tuple(_figure_row(figure) for figure in check.figures),
        jobs=tuple(
            _job_view(job, f"{key}-job-{place}", source, job_count)
            for place, job in enumerate(check.jobs, start=1)
        ),
    )


def _cut(part: Part) -> Part:
    text, cut = first_lines(part.text, 80, MESSAGE_CHARS)
    return replace(part, text=text + "\n(cut here; the result file has all of it)") if cut else part


def _figure_row(figure: Figure) -> FigureRow:
    return FigureRow(
        figure=figure,
        value=quantity.quantity(figure.value, figure.unit),
        bound=quantity.bound_text(figure),
        holds=quantity.holds(figure),
        bar=Markup(figure_bar(figure)),
    )


def _job_view(job: JobRecord, key: str, source: str, job_count: int) -> JobView:
    end = job_end(job)
    tallies = tuple(tally(trace, end) for trace in job.ranks)
    others = {kind for one in tallies for kind in one.seconds_by_kind} - set(KINDS)
    largest = max((max(t.sent_bytes, t.received_bytes) for t in job.traffic), default=0)
    room = min(OUTPUT_CHARS_PER_JOB, OUTPUT_CHARS_PER_REPORT // job_count)
    output, left_out = last_chars(job.output, room)
    drawn = any(trace.spans for trace in job.ranks)
    blocks = max(BLOCKS_PER_REPORT // job_count, 60)
    return JobView(
        job=job,
        timeline=Markup(timeline_svg(job, key, source, blocks) if drawn else ""),
        tallies=tallies,
        kinds=(*KINDS, *sorted(others)),
        traffic=tuple(
            TrafficRow(
                traffic=host,
                sent_bar=Markup(share_bar(host.sent_bytes, largest, "sent")),
                received_bar=Markup(share_bar(host.received_bytes, largest, "received")),
            )
            for host in job.traffic
        ),
        hang=_hang_view(job, key, source),
        output=output,
        output_left_out=left_out,
    )


def _hang_view(job: JobRecord, key: str, source: str) -> HangView | None:
    if job.hang is None:
        return None
    return HangView(
        words=hang_in_words(job.hang, source),
        has_cycle=bool(job.hang.cycle),
        stands=tuple((trace.rank, stands_at(trace)) for trace in job.ranks if trace.stack),
        picture=Markup(hang_svg(job.hang, f"{key}-hang", source)),
    )
