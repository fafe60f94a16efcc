"""Gradings of every kind, made up but realistic."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from grader.outcome import Outcome
from grader.result import (
    CheckResult,
    FaultSpan,
    Figure,
    GradeResult,
    Hang,
    HostTraffic,
    JobRecord,
    Machine,
    ProblemInfo,
    RankTrace,
    Span,
    WaitEdge,
    total,
)

MIB = 1 << 20
HOSTILE = (
    "</script><img src=x onerror=alert(1)><b title='\"&lt;'>\x1b[31mred\x1b[0m\x1b]0;owned\x07"
    "\x1b[2J\u202egnp.exe\u202c \u200b[bold]markup[/bold] {{ 7 * 7 }} ]]> =cmd|' /C calc'!A0 \ud800"
)


def ring_traces(ranks: int, steps: int, seed: int = 1) -> tuple[RankTrace, ...]:
    """A ring all-reduce: compute, then exchange, then wait, over and over."""
    draw = random.Random(seed)
    traces = []
    for rank in range(ranks):
        now = 0.02 + draw.random() * 0.01
        spans = []
        for step in range(steps):
            for kind, operation, mean in (
                ("compute", "add chunk", 0.004),
                ("communication", "Isend", 0.003),
                ("communication", "Recv", 0.009),
                ("wait", "Wait", 0.003),
            ):
                length = mean * (0.6 + draw.random() * 0.8)
                peer = {"Isend": (rank + 1) % ranks, "Recv": (rank - 1) % ranks}.get(operation, -1)
                spans.append(
                    Span(
                        kind=kind,
                        operation=operation,
                        start=now,
                        end=now + length,
                        peer=peer,
                        tag=step if peer >= 0 else -1,
                        bytes=MIB if peer >= 0 else 0,
                        line=41 if peer >= 0 else 38,
                    )
                )
                now += length * (0.5 if operation == "Isend" else 1.0)
        traces.append(RankTrace(rank, f"node{rank // 2 + 1}", tuple(spans)))
    return tuple(traces)


def traffic(hosts: int) -> tuple[HostTraffic, ...]:
    return tuple(
        HostTraffic(f"node{n}", 25_600_000 + n * 900_000, 25_400_000 - n * 300_000, 18_240, 18_010)
        for n in range(1, hosts + 1)
    )


def ring_job(label: str, steps: int = 9) -> JobRecord:
    return JobRecord(
        label=label,
        ranks=ring_traces(4, steps),
        faults=(
            FaultSpan("delay 20 ms", 0.05, 0.11, "node2", "read back 20.0 ms; probe 40.3 ms"),
            FaultSpan("rate 200 Mbit/s", 0.0, None, "all links", "read back; probe 196 Mbit/s"),
        ),
        traffic=traffic(2),
        duration_s=0.19,
        output="rank 0: ready\nrank 1: ready\n",
    )


def right_sums() -> CheckResult:
    return CheckResult(
        name="test_sums_are_right_for_any_length",
        title="Every rank holds the exact sum, for any length",
        about="Lengths that the number of ranks does not divide are where ring code goes wrong.",
        outcome=Outcome.PASSED,
        points=20,
        max_points=20,
        duration_s=1.4,
        jobs=(ring_job("4 ranks, 1,000,003 elements"),),
    )


def few_bytes() -> CheckResult:
    return CheckResult(
        name="test_bytes_stay_near_the_lower_bound",
        title="Each host sends little more than the lower bound",
        about="No all-reduce can send less than 2(n-1)/n of the data from each rank.",
        outcome=Outcome.PASSED,
        points=15,
        max_points=15,
        duration_s=2.1,
        figures=(Figure("bytes sent by node1 over the bound", 1.046, "x", 1.08),),
    )


def slow_ring() -> CheckResult:
    return CheckResult(
        name="test_time_on_a_slow_link",
        title="On 200 Mbit/s links the time stays within 1.5 times the bound",
        about="The shaped link is the bottleneck, so the time shows how well it is kept busy.",
        outcome=Outcome.FAILED,
        points=0,
        max_points=25,
        duration_s=6.3,
        message=(
            "Sixteen MiB took longer than the links need.\n"
            "Expected: at most 1.5 x the bound of 1.007 s\n"
            "Got: 2.03 x the bound (2.04 s, median of 9 pairs)\n"
            "Where: 4 ranks on 2 hosts, 16 MiB float32\n"
            "Usual cause: the whole buffer is sent at each step, instead of one chunk of S/n.\n"
            "Next step: print the size of each message with `distlab test 03 --trace`; it should"
            " be 4 MiB."
        ),
        figures=(
            Figure("time over the bound", 2.03, "x", 1.5),
            Figure("bytes sent by node1", 50_900_000, "B", 27_180_000),
            Figure("link use", 0.49, "", 0.6, ">="),
            Figure("relative standard error", 0.021),
        ),
        jobs=(ring_job("4 ranks, 16 MiB on 200 Mbit/s"),),
    )


def deadlock(ranks: int = 4) -> CheckResult:
    spans = (Span("compute", "fill buffer", 0.01, 0.05, line=33),)
    traces = tuple(
        RankTrace(
            rank,
            f"node{rank // 2 + 1}",
            (
                *spans,
                Span("wait", "Send", 0.05 + rank * 0.004, None, (rank + 1) % ranks, 7, MIB, 41),
            ),
            ("solution.py:41 in exchange", "solution.py:58 in all_reduce"),
        )
        for rank in range(ranks)
    )
    edges = tuple(WaitEdge(rank, (rank + 1) % ranks, "Send", 41, 7, MIB) for rank in range(ranks))
    job = JobRecord(
        label=f"{ranks} ranks, 1 MiB",
        ranks=traces,
        traffic=traffic(2),
        duration_s=5.0,
        hang=Hang("Every rank sends before it receives.", edges, tuple(range(ranks))),
        output="rank 3: entering exchange\n",
    )
    return CheckResult(
        name="test_large_messages_do_not_deadlock",
        title="A 1 MiB message goes round the ring",
        about="Small sends return at once because MPI buffers them; large ones wait.",
        outcome=Outcome.TIMED_OUT,
        points=0,
        max_points=20,
        duration_s=5.2,
        message=(
            "Expected: every rank returns within 5 s\nGot: no rank returned\n"
            "Usual cause: all ranks call Send first, and each waits for a receive that never"
            " starts.\nNext step: use Sendrecv, or let odd ranks receive first."
        ),
        jobs=(job,),
    )


def skipped() -> CheckResult:
    return CheckResult(
        name="test_survives_jitter",
        title="The sums are right while one link jitters",
        outcome=Outcome.SKIPPED,
        points=0,
        max_points=10,
        hidden=True,
    )


def graded(*checks: CheckResult) -> GradeResult:
    outcome, score, max_score = total(checks)
    return GradeResult(
        problem=ProblemInfo(3, "allreduce_mpi", "All-reduce over MPI", "intermediate"),
        submission="work/solution.py",
        seed="98127340981723409817234098172340",
        machine=Machine(2, 8_192, "6.1.0", "3.11.2", "Open MPI 5.0.8", "netns", "uml"),
        started="2025-03-04 10:20:30 UTC",
        duration_s=15.2,
        checks=checks,
        outcome=outcome,
        score=score,
        max_score=max_score,
        hints_used=1,
    )


def hostile_check() -> CheckResult:
    job = JobRecord(
        label=HOSTILE,
        ranks=(
            RankTrace(
                0,
                HOSTILE,
                (
                    Span(HOSTILE, HOSTILE, 0.0, 0.5, 1, 2, 3, 4),
                    Span("wait", HOSTILE, float("nan"), None),
                    Span("wait", HOSTILE, 0.4, float("inf")),
                    Span("wait", HOSTILE, 0.6, 0.1),
                ),
                (HOSTILE,),
            ),
        ),
        faults=(FaultSpan(HOSTILE, float("nan"), None, HOSTILE, HOSTILE),),
        traffic=(HostTraffic(HOSTILE, 0, 0, 0, 0),),
        duration_s=float("nan"),
        hang=Hang(HOSTILE, (WaitEdge(0, -1, HOSTILE, 3), WaitEdge(1, 0, HOSTILE)), (0, 1)),
        output=HOSTILE + "A" * MIB + HOSTILE,
    )
    return CheckResult(
        name=HOSTILE,
        title=HOSTILE,
        about=HOSTILE,
        outcome=Outcome.FAILED,
        points=0,
        max_points=10,
        message=f"{HOSTILE}\nExpected: {HOSTILE}\nGot: {HOSTILE * 50}",
        figures=(
            Figure(HOSTILE, float("nan"), HOSTILE, 1.0, HOSTILE),
            Figure("speed", float("inf"), "x", float("nan"), ">="),
            Figure("negative", -1e300, "B", 3.0),
        ),
        jobs=(job,),
    )


RESULTS: dict[str, Callable[[], GradeResult]] = {
    "passed": lambda: graded(right_sums(), few_bytes()),
    "failed": lambda: graded(right_sums(), few_bytes(), slow_ring(), skipped()),
    "timed out": lambda: graded(right_sums(), deadlock(), skipped()),
    "unfit": lambda: graded(
        replace(
            slow_ring(),
            outcome=Outcome.UNFIT,
            message="The delay of 20 ms could not be applied on node2: the probe saw 0.2 ms.",
            figures=(),
            jobs=(),
        )
    ),
    "hostile": lambda: replace(
        graded(hostile_check()),
        problem=ProblemInfo(7, HOSTILE, HOSTILE, HOSTILE),
        submission=HOSTILE,
        seed=HOSTILE,
        started=HOSTILE,
    ),
    "crowded": lambda: graded(
        replace(
            right_sums(),
            jobs=(replace(ring_job("12 ranks"), ranks=ring_traces(12, 500), duration_s=9.0),),
        )
    ),
}


@pytest.fixture
def make_result() -> Callable[[str], GradeResult]:
    """A grading by its name in RESULTS."""
    return lambda name: RESULTS[name]()


@pytest.fixture(params=sorted(RESULTS))
def any_result(request: pytest.FixtureRequest) -> GradeResult:
    return RESULTS[request.param]()


@pytest.fixture
def hostile_text() -> str:
    return HOSTILE
