"""Run cases of a submission on the ranks of a cluster, and take their answers in.

The clock, the inputs and the counters stay on this side. A case is announced, prepared on every
rank, and only then revealed; its time runs from there until all answers have been read.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from cluster.interface import Cluster, ClusterError, Host, Traffic, Unfit
from cluster.launchers.job import DEFAULT_OPTIONS, JobOptions, RankLauncher, RunningJob
from cluster.network.mpi_messages import CollectiveMessage, MessageWatch
from grader.case_inbox import CaseInbox
from grader.case_run import CaseRun, moved
from grader.ended import CheckEnded, RefusedCallSeen
from grader.killing import Killing
from grader.launching import rank_program
from grader.package import Problem
from grader.rank_files import Array, RankFiles, decode
from grader.rank_watch import RankWatch
from grader.result import FaultSpan, HostTraffic, JobRecord, RankTrace
from grader.spans import Window, spans
from grader.standings import Stacks
from grader.submission import Submission

_LEAST_READY_TIMEOUT_S = 30.0
_LEAVE_TIMEOUT_S = 2.0
_LAST_WORDS_S = 0.01
_SMALLEST_OUTPUT_LIMIT = 65536


@dataclass(frozen=True)
class JobOrder:
    """What a job runs. name: unique among the jobs on its cluster; label: for people. alone: see
    CaseRun."""

    problem: Problem
    submission: Submission
    ranks: int
    name: str
    label: str
    options: JobOptions = DEFAULT_OPTIONS
    alone: bool = True


@dataclass(frozen=True)
class _Running:
    """A started job and what is read from it."""

    job: RunningJob
    files: RankFiles
    stacks: Stacks
    watch: RankWatch


class RankJob:
    """A submission running on ranks. A context manager; leaving it ends the job."""

    def __init__(self, cluster: Cluster, launcher: RankLauncher, order: JobOrder) -> None:
        self._cluster, self._launcher, self._order = cluster, launcher, order
        self._inbox = CaseInbox(order.name, cluster.hosts)
        self._windows: list[Window] = []
        self._next_case, self._started, self._ended = 0, time.monotonic(), 0.0
        self._running: _Running | None = None
        self._in_trouble = False
        self._traffic_before: tuple[Traffic, ...] | str = ()
        self._messages: MessageWatch | None = None
        self._kills: list[FaultSpan] = []
        self._printed: str | None = None

    @property
    def started(self) -> float:
        """Zero of the job's time axis, on this machine's monotonic clock."""
        return self._started

    @property
    def label(self) -> str:
        return self._order.label

    def __enter__(self) -> Self:
        order = self._order
        settings = {
            "runtime": order.problem.runtime,
            "entry": order.submission.entry,
            "refuse": list(order.problem.refused.calls),
        }
        self._inbox.settings(settings)
        if order.problem.runtime == "mpi" and order.problem.refused.calls:
            self._messages = self._cluster.watch_messages()
        self._started = time.monotonic()
        self._traffic_before = self._count()
        job = self._launcher.start(
            self._cluster, lambda host: rank_program(host, order.name), order.ranks, order.options
        )
        files = RankFiles(order.name, job.placement)
        stacks = Stacks(files, job.placement, order.submission.entry)
        watch = RankWatch(job, files, stacks, order.problem.runtime)
        self._running = _Running(job, files, stacks, watch)
        try:
            watch.started()
            self._inbox.may_import()
            watch.loaded(order.problem.limits.load)
        except BaseException:
            self._in_trouble = True
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        job = self._now().job
        self._ended = time.monotonic()
        if not self._in_trouble:
            # Before the ranks leave: the launcher comments on ranks that leave without a goodbye.
            time.sleep(_LAST_WORDS_S)
            self._printed = job.output()
            self._inbox.announce(self._next_case, {"end": True})
            job.wait_for_ranks(_LEAVE_TIMEOUT_S)
        job.end()
        if self._messages is not None:
            self._messages.close()

    def run(
        self,
        inputs: Sequence[Mapping[str, Array]],
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        output_bytes: int = 0,
        lost: Collection[int] = (),
        during: AbstractContextManager[object] | None = None,
    ) -> CaseRun:
        """Give `inputs[r]` to rank r (the first len(inputs) ranks take part) and await the answers.

        output_bytes: how large one handed-in array may be beyond the largest input. lost: ranks
        that the check kills meanwhile; theirs are not awaited. during: entered as the inputs are
        revealed and left with the last answer, such as a timeline of faults. Raises TimedOut with
        the reason for the hang, Crashed, RefusedCallSeen, or Failed.
        """
        running, number, ranks = self._now(), self._next_case, range(len(inputs))
        self._next_case += 1
        deadline_s = self._order.problem.limits.case if timeout_s is None else timeout_s
        largest = max((a.nbytes for per_rank in inputs for a in per_rank.values()), default=0)
        limit = max(largest, output_bytes) + _SMALLEST_OUTPUT_LIMIT
        awaited = [rank for rank in ranks if rank not in lost]
        began: float | None = None
        try:
            self._inbox.announce(number, {"ranks": len(ranks)})  # the ranks gather meanwhile
            files = self._inbox.stage(number, inputs, dict(params or {}), running.job.placement)
            ready_s = max(deadline_s, _LEAST_READY_TIMEOUT_S)
            running.watch.ready(number, ranks, ready_s)
            before = self._count()
            self._collectives()  # forget those that made the communicators
            began = time.monotonic()
            for host, host_files in files.items():
                host.mailbox.reveal(host_files)
            with during or nullcontext():
                statuses = running.watch.done(number, awaited, deadline_s, lost)
                raw = {r: running.files.answer(r, number, statuses[r], limit) for r in awaited}
                ended = time.monotonic()
            after = self._count()
            self._must_not_be_refused(self._collectives())
        except CheckEnded as verdict:
            self._in_trouble = True
            trouble = self._cluster.trouble()
            if trouble is not None:
                raise Unfit(trouble) from verdict
            raise
        except BaseException:
            self._in_trouble = True
            raise
        finally:
            if began is not None:
                self._windows.append(Window(began, time.monotonic()))
        outputs = tuple(decode(rank, raw.get(rank, {})) for rank in ranks)
        self._inbox.clear(number, files)
        return CaseRun(outputs, ended - began, moved(before, after), self._order.alone)

    def kill(self, rank: int) -> None:
        """End the process of one rank, as if the kernel had. Name it in `lost` of the case."""
        status = self._now().files.status(rank, f"started.r{rank}") or {}
        pid = status.get("pid")
        if not isinstance(pid, int) or pid <= 1:
            raise Unfit(f"rank {rank} cannot be killed: its process is not known")
        at = time.monotonic() - self._started
        self._host(rank).kill_process(pid)
        self._kills.append(FaultSpan(f"kill rank {rank}", at, at, proof="SIGKILL was sent"))

    def killing(self, times: Mapping[int, float]) -> Killing:
        """Ranks to kill, each so many seconds into a case: `killing = job.killing({2: 0.5})`,
        `run(..., lost={2}, during=killing)`, and at last `killing.must_have_fired()`."""
        return Killing(self.kill, times)

    def record(self) -> JobRecord:
        """What the job did, for the report. Reads the ranks' traces as they stand."""
        if self._running is None:
            return JobRecord(self.label)
        running, order = self._running, self._order
        ended = self._ended or time.monotonic()
        carried = moved(self._traffic_before, self._count())
        traffic = () if isinstance(carried, str) else carried
        ranks = []
        for rank, host in enumerate(running.job.placement):
            offset = host.clock_offset() if host.alive() else 0.0
            timeline = spans(running.files.trace(rank), self._windows, self._started, offset)
            ranks.append(RankTrace(rank, host.name, timeline, running.stacks.of(rank)))
        return JobRecord(
            order.label,
            tuple(ranks),
            tuple(self._kills),
            tuple(
                HostTraffic(
                    host.name, t.sent_bytes, t.received_bytes, t.sent_packets, t.received_packets
                )
                for host, t in zip(self._cluster.hosts, traffic, strict=False)
            ),
            ended - self._started,
            running.watch.hang,
            running.job.output() if self._printed is None else self._printed,
        )

    def _now(self) -> _Running:
        assert self._running is not None, "a job runs within its `with` block"
        return self._running

    def _host(self, rank: int) -> Host:
        return self._now().job.placement[rank]

    def _count(self) -> tuple[Traffic, ...] | str:
        """Counters of all hosts, or why there are none."""
        try:
            return tuple(host.data_bytes() for host in self._cluster.hosts)
        except ClusterError as error:
            return str(error)

    def _collectives(self) -> list[CollectiveMessage]:
        return self._messages.seen() if self._messages is not None else []

    def _must_not_be_refused(self, messages: Collection[CollectiveMessage]) -> None:
        """Raise RefusedCallSeen for what only a refused collective puts on the network."""
        refused = set(self._order.problem.refused.calls)
        for message in messages:
            if not message.housekeeping and refused.issuperset(message.sources):
                raise RefusedCallSeen(
                    f"messages of the library's own {message.sources[0]} were seen on the network "
                    "while the case ran; it is what you are asked to write yourself"
                )
