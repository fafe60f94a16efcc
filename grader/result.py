"""The result of one grading, as every report and sink reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from grader.outcome import Outcome, overall

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Figure:
    """One measured number. bound: the limit it was held against, if any; relation: "<=" or ">="."""

    name: str
    value: float
    unit: str = ""
    bound: float | None = None
    relation: str = "<="


@dataclass(frozen=True)
class Span:
    """One traced operation of a rank. Times in seconds since the job's zero; end None: unfinished.

    kind: "communication" (moving data) | "wait" (blocked on a peer) | "compute".
    line: line in the learner's solution file, 0 if unknown. peer: rank, -1 none, -2 any.
    """

    kind: str
    operation: str
    start: float
    end: float | None
    peer: int = -1
    tag: int = -1
    bytes: int = 0
    line: int = 0


@dataclass(frozen=True)
class RankTrace:
    """What one rank did, oldest first. stack: innermost frames of the learner's file at the end."""

    rank: int
    host: str
    spans: tuple[Span, ...] = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class FaultSpan:
    """One fault on the job's time axis. end None: in force until the job ended. proof: what the
    read-back and the probe showed."""

    description: str
    start: float
    end: float | None = None
    target: str = ""
    proof: str = ""


@dataclass(frozen=True)
class HostTraffic:
    """Counted outside the host: bytes and packets on its data interface during the job."""

    host: str
    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int


@dataclass(frozen=True)
class WaitEdge:
    """`rank` cannot go on before `peer` does something. peer -1: nobody in particular."""

    rank: int
    peer: int
    operation: str
    line: int = 0
    tag: int = -1
    bytes: int = 0


@dataclass(frozen=True)
class Hang:
    """Why a job did not end. cycle: ranks in order, empty if the waits form none."""

    cause: str
    edges: tuple[WaitEdge, ...] = ()
    cycle: tuple[int, ...] = ()


@dataclass(frozen=True)
class JobRecord:
    """One job that a check ran on the cluster: its timeline, faults, traffic."""

    label: str
    ranks: tuple[RankTrace, ...] = ()
    faults: tuple[FaultSpan, ...] = ()
    traffic: tuple[HostTraffic, ...] = ()
    duration_s: float = 0.0
    hang: Hang | None = None
    output: str = ""


@dataclass(frozen=True)
class CheckResult:
    """One check. title: what must hold, a sentence; about: why, for the learner. message: what
    was seen when it does not hold: expected, got, where, usual cause, next step."""

    name: str
    title: str
    outcome: Outcome
    points: float
    max_points: float
    message: str = ""
    about: str = ""
    figures: tuple[Figure, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    duration_s: float = 0.0
    hidden: bool = False


@dataclass(frozen=True)
class Machine:
    """Where it was graded. network_engine: "kernel", "uml" or "none"."""

    cpu_count: int
    memory_mb: int
    kernel: str
    python: str
    mpi: str
    backend: str
    network_engine: str


@dataclass(frozen=True)
class ProblemInfo:
    number: int
    slug: str
    title: str
    level: str


@dataclass(frozen=True)
class GradeResult:
    """A whole grading. seed: decimal text (it may exceed what JSON numbers carry exactly).

    unjudged_points: what hidden checks are worth that were not run; max_score is without them.
    """

    problem: ProblemInfo
    submission: str
    seed: str
    machine: Machine
    started: str
    duration_s: float
    checks: tuple[CheckResult, ...]
    outcome: Outcome
    score: float
    max_score: float
    hints_used: int = 0
    hint_cost: float = 0.0
    unjudged_points: float = 0.0
    schema_version: int = field(default=SCHEMA_VERSION)


def total(checks: tuple[CheckResult, ...]) -> tuple[Outcome, float, float]:
    """Overall outcome, points earned and points possible."""
    return (
        overall(check.outcome for check in checks),
        round(sum(check.points for check in checks), 6),
        round(sum(check.max_points for check in checks), 6),
    )
