"""A grading as a trace that ui.perfetto.dev opens: hosts as processes, ranks as threads.

Follows the Trace Event Format's JSON object form. Jobs stand one after another on the time axis.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.report.hang_words import source_name
from grader.report.lanes import Placed, job_end, place
from grader.report.message_pairs import paired
from grader.report.plain_text import one_line
from grader.result import GradeResult, JobRecord

Event = dict[str, Any]
GAP_NS = 1_000_000
"""Between two jobs on the axis."""


def write_trace(result: GradeResult, path: Path) -> None:
    path.write_text(trace_text(result), encoding="utf-8")


def trace_text(result: GradeResult) -> str:
    trace = {
        "traceEvents": list(_events(result)),
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": f"{result.problem.number:02d} {one_line(result.problem.title)}",
            "outcome": result.outcome.value,
            "seed": one_line(result.seed),
            "started": one_line(result.started),
        },
    }
    return json.dumps(trace, allow_nan=False, separators=(",", ":")) + "\n"


def _events(result: GradeResult) -> Iterator[Event]:
    source = source_name(result.submission)
    offset = 0
    first_pid = 1
    for check in result.checks:
        for job in check.jobs:
            title = f"{one_line(check.name)}: {one_line(job.label)}"
            writer = _JobEvents(job, title, source, offset, first_pid)
            yield from writer.all()
            offset += _ns(job_end(job)) + GAP_NS
            first_pid = writer.next_pid


class _JobEvents:
    """The events of one job, with process ids from `first_pid` and times from `offset`."""

    def __init__(
        self, job: JobRecord, title: str, source: str, offset: int, first_pid: int
    ) -> None:
        self._job = job
        self._title = title
        self._source = source
        self._offset = offset
        self._end = job_end(job)
        self._fault_pid = first_pid
        hosts = [*(trace.host for trace in job.ranks), *(counted.host for counted in job.traffic)]
        self._pids = {h: first_pid + 1 + i for i, h in enumerate(dict.fromkeys(hosts))}
        self._lanes = [(trace, place(trace, self._end)) for trace in job.ranks]
        self.next_pid = first_pid + 1 + len(self._pids)

    def all(self) -> Iterator[Event]:
        yield from self._process_names()
        yield from self._thread_names()
        yield from self._faults()
        yield from self._operations()
        yield from self._flows()
        yield from self._byte_counters()

    def _process_names(self) -> Iterator[Event]:
        for host, pid in self._pids.items():
            yield _metadata("process_name", pid, {"name": f"{self._title}: {one_line(host)}"})
            yield _metadata("process_sort_index", pid, {"sort_index": pid})
        for counted in self._job.traffic:
            label = f"sent {counted.sent_bytes} B, received {counted.received_bytes} B"
            yield _metadata("process_labels", self._pids[counted.host], {"labels": label})

    def _thread_names(self) -> Iterator[Event]:
        for index, (trace, placed) in enumerate(self._lanes):
            pid = self._pids[trace.host]
            for row in sorted({one.row for one in placed} | {0}):
                name = f"rank {trace.rank}" + (f", overlapping {row}" if row else "")
                tid = _tid(index, row)
                yield _metadata("thread_name", pid, {"name": name}, tid)
                yield _metadata("thread_sort_index", pid, {"sort_index": tid}, tid)

    def _faults(self) -> Iterator[Event]:
        faults = [fault for fault in self._job.faults if math.isfinite(fault.start)]
        if not faults:
            return
        pid = self._fault_pid
        yield _metadata("process_name", pid, {"name": f"{self._title}: faults"})
        yield _metadata("process_sort_index", pid, {"sort_index": pid})
        for tid, fault in enumerate(faults, start=1):
            yield _metadata("thread_name", pid, {"name": f"fault {tid}"}, tid)
            stop = fault.end if fault.end is not None and math.isfinite(fault.end) else self._end
            yield {
                "name": one_line(fault.description),
                "cat": "fault",
                "args": {"target": one_line(fault.target), "proof": one_line(fault.proof)},
                **self._interval(pid, tid, fault.start, stop),
            }

    def _operations(self) -> Iterator[Event]:
        for index, (trace, placed) in enumerate(self._lanes):
            open_until: dict[int, list[float]] = defaultdict(list)
            for one in placed:
                around = open_until[one.row]
                while around and around[-1] <= one.start:
                    around.pop()
                stop = min([one.end, *around])  # a thread's events may nest, not overlap in part
                around.append(stop)
                yield {
                    "name": one_line(one.span.operation) or one.span.kind,
                    "cat": one_line(one.span.kind),
                    "args": self._arguments(one),
                    **self._interval(self._pids[trace.host], _tid(index, one.row), one.start, stop),
                }

    def _flows(self) -> Iterator[Event]:
        for flow, (send, receive) in enumerate(paired(self._lanes), start=1):
            begin, stop = self._ts(send.placed.start), self._ts(receive.placed.end) - 1
            received_from = self._ts(receive.placed.start)
            if stop <= begin or stop < received_from or send.placed.end <= send.placed.start:
                continue  # nothing on the axis that an arrow could join
            shared = {
                "name": "message",
                "cat": "message",
                "id": self._fault_pid * 10_000_000 + flow,
            }
            yield {**shared, **self._point("s", send.lane, send.placed, begin)}
            yield {**shared, **self._point("f", receive.lane, receive.placed, stop), "bp": "e"}

    def _byte_counters(self) -> Iterator[Event]:
        moved: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for trace, placed in self._lanes:
            moved[trace.host] += [
                (self._ts(one.end), one.span.bytes) for one in placed if one.span.bytes > 0
            ]
        for host, steps in moved.items():
            total = 0
            for ts, count in [(self._ts(0.0), 0), *sorted(steps)]:
                total += count
                yield {
                    "ph": "C",
                    "name": "bytes in traced operations",
                    "pid": self._pids[host],
                    "tid": 0,
                    "ts": ts / 1000,
                    "args": {"bytes": total},
                }

    def _arguments(self, one: Placed) -> dict[str, Any]:
        span = one.span
        found: dict[str, Any] = {}
        if span.peer != -1:
            found["peer"] = "any" if span.peer == -2 else span.peer
        if span.tag >= 0:
            found["tag"] = span.tag
        if span.bytes > 0:
            found["bytes"] = span.bytes
        if span.line > 0:
            found["line"] = f"{self._source}:{span.line}"
        if one.unfinished:
            found["unfinished"] = True
        return found

    def _point(self, phase: str, lane: int, placed: Placed, ts: int) -> Event:
        trace = self._lanes[lane][0]
        pid = self._pids[trace.host]
        return {"ph": phase, "pid": pid, "tid": _tid(lane, placed.row), "ts": ts / 1000}

    def _interval(self, pid: int, tid: int, start: float, stop: float) -> Event:
        begin = self._ts(start)
        length = max(self._ts(stop) - begin, 0)
        return {"ph": "X", "pid": pid, "tid": tid, "ts": begin / 1000, "dur": length / 1000}

    def _ts(self, time: float) -> int:
        return self._offset + _ns(max(time, 0.0))


def _metadata(name: str, pid: int, args: dict[str, Any], tid: int = 0) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _tid(lane: int, row: int) -> int:
    return 1 + lane * 10 + row


def _ns(time: float) -> int:
    return round(time * 1e9)
