"""What a check is given to work with: hosts, jobs of the submission on them, and faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.faults.injector import Injector, TimelineRun
from cluster.faults.language import FaultSyntaxError, parse_timeline
from cluster.interface import Backend, Cluster, ClusterSpec, Limits
from cluster.launchers.job import DEFAULT_OPTIONS, JobOptions, RankLauncher
from grader.launching import RUNTIME_FOLDER
from grader.package import SHARED_FILES, Problem
from grader.rank_job import JobOrder, RankJob
from grader.result import FaultSpan, JobRecord
from grader.submission import Submission

_RUNTIME = {RUNTIME_FOLDER: Path(__file__).resolve().parent / "rank"}


@dataclass(frozen=True)
class Wanted:
    """The cluster a check asked for by its marks; None: as problem.toml says."""

    hosts: int | None = None
    slots: int | None = None
    network_faults: bool = False
    block_disk: bool = False


def cluster_spec(problem: Problem, submission: Submission, wanted: Wanted) -> ClusterSpec:
    """The hosts for one check: what problem.toml says, changed by the check's marks."""
    needs = problem.cluster
    shown = [p for n in ("driver.py", *SHARED_FILES) if (p := problem.folder / n).is_file()]
    files = {**_RUNTIME, **{f"problem/{p.name}": p for p in shown}, **submission.files}
    return ClusterSpec(
        hosts=wanted.hosts or needs.hosts,
        slots=wanted.slots or needs.slots,
        limits=Limits(memory_mb=needs.memory_mb, tmp_mb=needs.tmp_mb, pids=needs.pids),
        files=files,
        network_faults=wanted.network_faults,
        without=problem.refused.names,
        block_disk=wanted.block_disk,
    )


class Bench:
    """A fresh cluster for one check. The fixture `cluster` is one of these."""

    def __init__(
        self,
        backend: Backend,
        launcher: RankLauncher,
        problem: Problem,
        submission: Submission,
        wanted: Wanted,
        alone: bool = True,
    ) -> None:
        """alone: whether no other grading runs meanwhile, so that times count."""
        self._alone = alone
        self._launcher, self._problem, self._submission = launcher, problem, submission
        self.cluster: Cluster = backend.cluster(cluster_spec(problem, submission, wanted))
        self._injector = Injector(self.cluster)
        self._names = [host.name for host in self.cluster.hosts]
        self._jobs = 0
        self._records: list[JobRecord] = []

    @contextmanager
    def job(
        self, ranks: int, label: str = "job", options: JobOptions = DEFAULT_OPTIONS
    ) -> Iterator[RankJob]:
        """Run the submission on `ranks` ranks while the block lasts."""
        name = f"job{self._jobs}"
        self._jobs += 1
        order = JobOrder(self._problem, self._submission, ranks, name, label, options, self._alone)
        job = RankJob(self.cluster, self._launcher, order)
        try:
            with job:
                yield job
        finally:
            self._keep(job)

    def fault(self, text: str) -> None:
        """Put faults, one a line, into force until the check ends. Raises Unfit if one does not
        take, FaultSyntaxError for one with a time of its own: `timeline` is for those."""
        faults = parse_timeline(text, self._names)
        for fault in faults:
            if fault.start or fault.end is not None:
                raise FaultSyntaxError(f"{fault.text!r} has a time; give it to cluster.timeline()")
        self._injector.apply(*faults)

    def heal(self) -> None:
        """Lift all faults in force."""
        self._injector.heal()

    def timeline(self, text: str) -> TimelineRun:
        """Faults at their times, counted from the start of the block, while it lasts."""
        return TimelineRun(self._injector, parse_timeline(text, self._names))

    def records(self) -> tuple[JobRecord, ...]:
        return tuple(self._records)

    def close(self) -> None:
        self.cluster.close()

    def _keep(self, job: RankJob) -> None:
        record = job.record()
        faults = tuple(
            FaultSpan(
                applied.fault.text,
                max(0.0, applied.start - job.started),
                None if applied.end is None else applied.end - job.started,
                proof=applied.proof,
            )
            for applied in self._injector.history()
            if applied.end is None or applied.end > job.started
        )
        self._records.append(replace(record, faults=(*faults, *record.faults)))
