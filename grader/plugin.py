"""The pytest plugin through which a problem's checks run, and which turns them into results."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

from cluster.faults.language import is_of_the_network
from cluster.foreign_load import foreign_share, read_load
from cluster.interface import Backend, ClusterError
from cluster.launchers.job import RankLauncher
from grader.bench import Bench, Wanted
from grader.check_list import title_and_about
from grader.ended import CheckEnded, Partial
from grader.measure import Measure
from grader.outcome import Outcome
from grader.package import Problem
from grader.result import CheckResult
from grader.seeds import Seed
from grader.submission import Submission
from grader.turns import TimedBesideOthers, Turns

_RERUN = (Outcome.UNFIT, Outcome.INCONCLUSIVE)
# These say the same however busy the machine is.
_FIRM = (Outcome.PASSED, Outcome.SKIPPED, Outcome.REFUSED)
_CROWDED = 0.05


class GradingPlugin:
    """One grading. results: what each check gave, in the order they ran."""

    def __init__(
        self,
        backend: Backend,
        launcher: RankLauncher,
        problem: Problem,
        submission: Submission,
        seed: Seed,
        only: frozenset[str],
        on_check: Callable[[str, CheckResult | None], None],
        turns: Turns,
        brief: bool,
    ) -> None:
        """brief: see Measure."""
        self._turns, self._alone, self._brief = turns, True, brief
        self._backend, self._launcher = backend, launcher
        self._problem, self._submission = problem, submission
        self._seed, self._only, self._on_check = seed, only, on_check
        self._results: dict[str, CheckResult] = {}
        self._bench: Bench | None = None
        self._measure = Measure()
        self.interrupted = False
        self._collected: list[str] = []
        self.collection_errors: list[str] = []

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(self._results.values())

    def pytest_configure(self, config: pytest.Config) -> None:
        for line in (
            "points(n): what the check is worth",
            "needs(*names): checks that must have passed before",
            "cluster(hosts, slots, block_disk): another cluster than problem.toml's",
            "fault(line): a fault in force during the whole check",
            "network_faults: the check applies network faults itself",
        ):
            config.addinivalue_line("markers", line)

    @property
    def unjudged(self) -> list[str]:
        """Checks that were collected and have no result."""
        return [name for name in self._collected if name not in self._results]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = [item.name for item in session.items]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(str(report.longrepr))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._only:
            wanted = set(self._only)
            while True:
                more = {n for item in items if item.name in wanted for n in _needs(item)} - wanted
                if not more:
                    break
                wanted |= more
            items[:] = [item for item in items if item.name in wanted]
        if any(map(_wants_network_faults, items)):
            with suppress(ClusterError):  # the checks that need faults say so, others are judged
                self._backend.prepare_network_faults()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self._on_check(item.name, None)
        result = self._run_in_turn(item, nextitem)
        self._results[item.name] = result
        self._on_check(item.name, result)
        return True

    @pytest.fixture
    def cluster(self, request: pytest.FixtureRequest) -> Iterator[Bench]:
        """Fresh hosts, with the check's faults in force."""
        node = request.node
        mark = node.get_closest_marker("cluster")
        faults = [m.args[0] for m in node.iter_markers("fault")]
        size = mark.kwargs if mark else {}
        wanted = Wanted(
            size.get("hosts"),
            size.get("slots"),
            _wants_network_faults(node),
            size.get("block_disk", any("slow disk" in text for text in faults)),
        )
        self._bench = Bench(
            self._backend, self._launcher, self._problem, self._submission, wanted, self._alone
        )
        try:
            if faults:
                self._bench.fault("\n".join(faults))
            yield self._bench
        finally:
            self._bench.close()

    @pytest.fixture
    def submission(self) -> Submission:
        return self._submission

    @pytest.fixture
    def measure(self) -> Measure:
        return self._measure

    @pytest.fixture
    def rng(self, request: pytest.FixtureRequest) -> np.random.Generator:
        """Random numbers from the grading's secret seed, one stream a check."""
        return self._seed.stream(request.node.name)

    def _run_in_turn(self, item: pytest.Item, nextitem: pytest.Item | None) -> CheckResult:
        """Run a check, and once more where the machine may be to blame for how it ended."""
        result, crowded = self._attempt(item, nextitem, self._turns.is_alone(item.name))
        if isinstance(self._ended, TimedBesideOthers):
            self._turns.is_timed(item.name)
            result, _ = self._attempt(item, nextitem, alone=True)
        elif crowded and result.outcome not in _FIRM:
            result, _ = self._attempt(item, nextitem, alone=True)
        if result.outcome in _RERUN:
            result, _ = self._attempt(item, nextitem, alone=True)
        return result

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item | None, alone: bool
    ) -> tuple[CheckResult, bool]:
        """The result, and whether others whom this grading shares with took processor time."""
        item._initrequest()  # type: ignore[attr-defined]  # as pytest-rerunfailures does
        with self._turns.take(alone=alone):
            self._alone = alone
            before = read_load()
            result = self._run(item, nextitem)
            return result, not alone and foreign_share(before, read_load()) > _CROWDED

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> CheckResult:
        began = time.monotonic()
        self._bench, self._measure = None, Measure(self._alone, self._brief)
        self._ended: BaseException | None = None
        unmet = [n for n in _needs(item) if n in self._results and not self._met(n)]
        if unmet:
            failed = self._results[unmet[0]]
            root = (
                failed.message.splitlines()[0]
                if failed.outcome is Outcome.SKIPPED
                else (f"not run, because “{failed.title}” did not pass")
            )
            return self._result(item, Outcome.SKIPPED, 0.0, root, began)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem, log=True)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return self._verdict(item, self._ended, began)

    def _met(self, name: str) -> bool:
        """Whether nothing speaks against running what builds on a check. One that the machine
        could not run does not."""
        outcome = self._results[name].outcome
        return outcome in (Outcome.PASSED, Outcome.PARTIAL) or not outcome.counts_against_learner

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[Any]:
        if call.excinfo is not None and self._ended is None:
            self._ended = call.excinfo.value
        return (yield)

    def _verdict(self, item: pytest.Item, ended: BaseException | None, began: float) -> CheckResult:
        points = _points(item)
        if ended is None:
            return self._result(item, Outcome.PASSED, points, "", began)
        if isinstance(ended, Partial):
            return self._result(
                item, Outcome.PARTIAL, points * ended.fraction, ended.message, began
            )
        if isinstance(ended, CheckEnded):
            return self._result(item, ended.outcome, 0.0, ended.message, began)
        if isinstance(ended, ClusterError):
            return self._result(item, Outcome.UNFIT, 0.0, str(ended), began)
        if isinstance(ended, (KeyboardInterrupt, SystemExit)):
            self.interrupted = True
            return self._result(item, Outcome.UNFIT, 0.0, "interrupted", began)
        text = f"the check itself failed: {type(ended).__name__}: {ended}"
        return self._result(item, Outcome.UNFIT, 0.0, text, began)

    def _result(
        self, item: pytest.Item, outcome: Outcome, points: float, message: str, began: float
    ) -> CheckResult:
        title, about = _words(item)
        private = self._problem.private_folder
        hidden = private is not None and item.path.is_relative_to(private)
        return CheckResult(
            item.name,
            title,
            outcome,
            points,
            _points(item),
            message,
            about,
            self._measure.figures,
            self._bench.records() if self._bench else (),
            time.monotonic() - began,
            hidden,
        )


def _wants_network_faults(item: pytest.Item) -> bool:
    lines = (line for m in item.iter_markers("fault") for line in m.args[0].split("\n"))
    marked = item.get_closest_marker("network_faults") is not None
    return marked or any(map(is_of_the_network, lines))


def _needs(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("needs") for name in mark.args]


def _points(item: pytest.Item) -> float:
    mark = item.get_closest_marker("points")
    return float(mark.args[0]) if mark else 0.0


def _words(item: pytest.Item) -> tuple[str, str]:
    """Title and explanation of a check: the first paragraph of its docstring, and the rest."""
    text = inspect.getdoc(getattr(item, "function", None)) or item.name.replace("_", " ")
    return title_and_about(text)
