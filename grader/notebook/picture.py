"""One job of a grading as a frame to show in a notebook."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from grader.report.html import render_job
from grader.result import CheckResult, GradeResult, JobRecord

_SVG_HEIGHT = re.compile(r'<svg class="timeline"[^>]* height="([\d.]+)"')
_AROUND, _ROW, _TABLE, _HANG, _TALLEST = 130, 45, 80, 300, 900


def frame(result: GradeResult | None, wanted: str | None = None) -> str:
    """HTML that shows a job of the check named `wanted`, or else the job that sent most bytes.

    The page is in an iframe without scripts, so that its styles stay its own.
    """
    jobs = [] if result is None else list(_jobs(result, wanted))
    if result is None or not jobs:
        return "<p>Nothing ran on the hosts that could be drawn.</p>"
    check, job = max(jobs, key=lambda pair: sum(t.sent_bytes for t in pair[1].traffic))
    page = render_job(result, check, job)
    match = _SVG_HEIGHT.search(page)
    tall = _AROUND + (float(match[1]) if match else 0)
    tall += _TABLE + _ROW * len(job.traffic) if job.traffic else 0
    tall += _HANG if job.hang else 0
    return (
        f'<iframe sandbox="" title="Timeline and traffic" srcdoc="{html.escape(page)}" '
        f'style="width: 100%; height: {min(tall, _TALLEST):.0f}px; border: 0"></iframe>'
    )


def _jobs(result: GradeResult, wanted: str | None) -> Iterator[tuple[CheckResult, JobRecord]]:
    for check in result.checks:
        if wanted is None or check.name == wanted:
            yield from ((check, job) for job in check.jobs if job.ranks)
