"""Wait for the ranks of a job: until they have loaded, until a case is through, or until it is
clear that they will not get there, and then say why."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Sequence

from cluster.interface import Unfit
from cluster.launchers.job import RankEnd, RunningJob
from grader.ended import CheckEnded, Crashed, TimedOut
from grader.first_cause import first_cause, is_trouble
from grader.rank_files import RankFiles, Status
from grader.result import Hang
from grader.standings import Stacks, why_it_hangs

_POLL_S, _LONGEST_POLL_S = 0.0003, 0.002
_POLLS_SHARE = 0.005
"""Of the time that has passed: so much later at most an answer is seen, and looking for it takes
the ranks no processor in a long case."""
_LOADING_POLL_S = 0.002
_GRACE_AFTER_TROUBLE_S = 1.0
_START_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 10.0
_SHOWN_LINES = 12


class RankWatch:
    """Watches one running job. hang: set once a case did not end."""

    def __init__(self, job: RunningJob, files: RankFiles, stacks: Stacks, runtime: str) -> None:
        self._job, self._files, self._stacks, self._runtime = job, files, stacks, runtime
        self.hang: Hang | None = None

    def started(self) -> None:
        """Wait until every rank has joined the job. None has seen the submission yet, so that
        whatever goes wrong is not its fault: raises Unfit."""
        ranks = range(len(self._job.placement))
        started: set[int] = set()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            now, over, ends = self._look()
            started |= {r for r in ranks if r not in started and self._exists(f"started.r{r}", r)}
            if len(started) == len(ranks):
                return
            if over or ends:
                raise Unfit(f"the ranks could not be started:\n{self._last_lines()}")
            if now > deadline:
                raise Unfit(
                    f"only {len(started)} of {len(ranks)} ranks started within "
                    f"{_START_TIMEOUT_S:g} s; the machine is too busy, or the launcher failed:\n"
                    f"{self._last_lines()}"
                )
            time.sleep(_LOADING_POLL_S)

    def loaded(self, limit_s: float) -> None:
        """Wait until every rank has imported the submission. Raises TimedOut or Crashed."""
        ranks = range(len(self._job.placement))
        statuses: dict[int, Status] = {}
        deadline = time.monotonic() + limit_s
        while True:
            now, over, ends = self._look()
            self._read(statuses, ranks, "loaded.r{rank}")
            ends = [end for end in ends if end.rank not in statuses]
            if ends or any(map(is_trouble, statuses.values())):
                raise self._cause(statuses, ends, "while it was imported")
            if len(statuses) == len(ranks):
                return
            if over:
                raise self._cause(statuses, ends, "before every rank had imported the submission")
            if now > deadline:
                raise self._slow_import(limit_s, [r for r in ranks if r not in statuses])
            time.sleep(_LOADING_POLL_S)

    def ready(self, case: int, ranks: Sequence[int], timeout_s: float) -> None:
        """Wait until `ranks` stand ready for a case. Raises as `done` does, and Unfit when their
        hosts do nothing else either."""
        self._stage(case, ranks, "ready", timeout_s, ())

    def done(
        self, case: int, ranks: Sequence[int], timeout_s: float, lost: Collection[int]
    ) -> dict[int, Status]:
        """Wait for the answers of `ranks`; return their statuses. lost: ranks not waited for.

        Raises TimedOut with the reason for the hang, Crashed, RefusedCallSeen, or Failed.
        """
        return self._stage(case, ranks, "done", timeout_s, lost)

    def _stage(
        self, case: int, ranks: Sequence[int], stage: str, timeout_s: float, lost: Collection[int]
    ) -> dict[int, Status]:
        began = time.monotonic()
        deadline = began + timeout_s
        statuses: dict[int, Status] = {}
        trouble_since: float | None = None
        while True:
            now, over, ends = self._look()
            self._read(statuses, ranks, f"case{case}.r{{rank}}.{stage}")
            if len(statuses) == len(ranks):
                break
            ends = [end for end in ends if end.rank in ranks and end.rank not in statuses]
            if over or (trouble_since is not None and now > trouble_since + _GRACE_AFTER_TROUBLE_S):
                raise self._cause(statuses, ends, "while it ran")
            if ends or any(map(is_trouble, statuses.values())):
                trouble_since = trouble_since or now
            elif now > deadline:
                raise self._hung(sorted({*ranks, *lost}), statuses, lost, stage, timeout_s)
            time.sleep(min(max(_POLL_S, _POLLS_SHARE * (now - began)), _LONGEST_POLL_S))
        if any(map(is_trouble, statuses.values())):
            raise self._cause(statuses, [], "while it ran")
        return statuses

    def _look(self) -> tuple[float, bool, Sequence[RankEnd]]:
        """The time, whether the job is over, and who ended; taken before the files are read, so
        that what a rank wrote before its end is seen as well."""
        return time.monotonic(), not self._job.running(), self._job.ends()

    def _exists(self, name: str, rank: int) -> bool:
        return self._files.exists(rank, name)

    def _read(self, statuses: dict[int, Status], ranks: Collection[int], name: str) -> None:
        for rank in ranks:
            if rank not in statuses:
                status = self._files.status(rank, name.format(rank=rank))
                if status is not None:
                    statuses[rank] = status

    def _cause(self, statuses: dict[int, Status], ends: Sequence[RankEnd], when: str) -> CheckEnded:
        down = [host.name for host in self._job.placement if not host.alive()]
        cause = first_cause(statuses, ends, down, when)
        if cause is not None:
            return cause
        if down:
            return Crashed(f"the job ended {when}, because {down[0]} is down")
        return Crashed(f"the job ended {when}. Last lines of its output:\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(self._job.output().strip().splitlines()[-_SHOWN_LINES:])

    def _slow_import(self, limit_s: float, waiting: Sequence[int]) -> TimedOut:
        self._stacks.collect()
        where = next(
            (f"; rank {r} stands at {s[0]}" for r in waiting if (s := self._stacks.of(r))), ""
        )
        return TimedOut(f"importing {self._stacks.entry} took more than {limit_s:g} s{where}")

    def _hung(
        self,
        ranks: Sequence[int],
        statuses: Collection[int],
        lost: Collection[int],
        stage: str,
        timeout_s: float,
    ) -> Exception:
        gone = {end.rank for end in self._job.ends()} | set(lost)
        self.hang = why_it_hangs(
            self._files, self._stacks, self._job.placement, ranks, statuses, gone, self._runtime
        )
        missing = [rank for rank in ranks if rank not in statuses and rank not in lost]
        # A submission can stop its process, and hide where. Its host is out of its reach.
        if stage == "ready" and not self._hosts_answer(missing):
            return Unfit(f"the ranks could not be gathered for a case within {timeout_s:g} s")
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        failing = "did not begin the case" if stage == "ready" else "gave no answer"
        return TimedOut(f"{who} {failing} within {timeout_s:g} s. {self.hang.cause}", self.hang)

    def _hosts_answer(self, ranks: Sequence[int]) -> bool:
        """Whether something else than the ranks can run on their hosts, or is at least refused."""
        for host in {self._job.placement[rank] for rank in ranks}:
            probe = host.start(["/bin/true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                probe.wait(_PROBE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                probe.kill()
                return False
        return True
