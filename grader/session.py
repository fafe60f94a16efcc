"""Grade one submission: static checks, then the problem's checks through pytest."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.interface import Backend, ClusterError
from cluster.launchers.job import RankLauncher
from grader import machine
from grader.check_list import listed
from grader.launching import launcher_for
from grader.outcome import Outcome
from grader.package import Problem
from grader.plugin import GradingPlugin
from grader.result import CheckResult, GradeResult, ProblemInfo, total
from grader.seeds import Seed
from grader.submission import RefusedUse, Submission, missing_functions, refused_uses
from grader.turns import Manners, Turns

_PYTEST_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST")


class Interrupted(Exception):
    """The user stopped the grading; `partial` holds what was judged so far."""

    def __init__(self, partial: GradeResult) -> None:
        super().__init__("interrupted")
        self.partial = partial


@dataclass(frozen=True)
class Order:
    """What to grade and how. only: names of checks, empty for all. hidden: run the private ones;
    without them it is a learner's own trial, in which times are measured no more than needed."""

    problem: Problem
    submission: Submission
    seed: Seed
    hidden: bool = True
    only: frozenset[str] = frozenset()
    junit: Path | None = None
    hints_used: int = 0
    hint_cost: float = 0.0


@dataclass(frozen=True)
class Stand:
    """Where submissions of one problem are run, and in which turns."""

    backend: Backend
    launcher: RankLauncher
    turns: Turns


@contextmanager
def open_stand(
    problem: Problem, make_backend: Callable[[], Backend], manners: Manners = Manners.FREE
) -> Iterator[Stand]:
    """Set up what gradings of `problem` have in common. Raises ClusterError."""
    turns = Turns(manners)
    with make_backend() as backend, launcher_for(problem, backend.name) as launcher:
        with turns.take(alone=False):
            launcher.prepare()
        yield Stand(backend, launcher, turns)


def grade(
    order: Order,
    stand: AbstractContextManager[Stand],
    on_check: Callable[[str, CheckResult | None], None] = lambda _name, _result: None,
) -> GradeResult:
    """Grade a submission at `stand`, which is entered only if there is something to run.

    Raises Interrupted with what was judged so far.
    """
    began, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    backend_name, engine = "", "none"
    interrupted = False
    checks = _static_checks(order)
    if not checks:
        try:
            with stand as at:
                plugin = _run_checks(order, at, on_check)
                backend_name, engine = at.backend.name, at.backend.network_engine
            checks, interrupted = plugin.results, plugin.interrupted
            if plugin.collection_errors:
                checks = (_broken_harness(order, plugin.collection_errors[0]),)
            elif plugin.unjudged and not interrupted:
                names = ", ".join(plugin.unjudged)
                checks = (*checks, _broken_harness(order, f"{names} did not run"))
        except ClusterError as error:
            checks = (_whole(order, Outcome.UNFIT, "The cluster could be set up.", str(error)),)
    outcome, score, max_score = total(checks)
    partly = bool(order.only) or interrupted or _hidden_checks(order) is not None
    result = GradeResult(
        ProblemInfo(
            order.problem.number, order.problem.slug, order.problem.title, order.problem.level
        ),
        str(order.submission.path),
        str(order.seed.value),
        machine.describe(backend_name, engine),
        started.isoformat(timespec="seconds"),
        time.monotonic() - began,
        checks,
        outcome,
        max(0.0, round(score - order.hint_cost, 6)),
        max_score,
        order.hints_used,
        order.hint_cost,
        0.0 if partly else max(0.0, round(order.problem.points - max_score, 6)),
    )
    if interrupted:
        raise Interrupted(result)
    return result


def _static_checks(order: Order) -> tuple[CheckResult, ...]:
    """What can be judged without running anything; empty when there is nothing against it."""
    problem, submission = order.problem, order.submission
    refused = refused_uses(submission, problem)
    if refused:
        return (_refusal(order, refused),)
    missing = missing_functions(submission, problem)
    if missing:
        text = ". ".join(missing) + ". stub.py shows every name and signature."
        return (_whole(order, Outcome.FAILED, "The solution defines the API of the stub.", text),)
    return ()


def _refusal(order: Order, refused: list[RefusedUse]) -> CheckResult:
    uses = "; ".join(f"{use.name} on line {use.line}" for use in refused[:6])
    why = order.problem.refused.why
    return _whole(
        order,
        Outcome.REFUSED,
        "The solution uses only what the problem allows.",
        f"{order.submission.entry} uses {uses}. {why}".strip(),
    )


def _broken_harness(order: Order, text: str) -> CheckResult:
    return _whole(
        order, Outcome.UNFIT, "The checks can be loaded.", f"the checks could not be loaded: {text}"
    )


def _whole(order: Order, outcome: Outcome, title: str, message: str) -> CheckResult:
    problem = order.problem
    points = problem.points
    if _hidden_checks(order) is None:
        points = sum(check.points for check in listed(problem) if not check.hidden) or points
    return CheckResult("submission", title, outcome, 0.0, points, message)


def _hidden_checks(order: Order) -> Path | None:
    """The file of those that are run."""
    return order.problem.hidden_checks if order.hidden else None


def _run_checks(
    order: Order,
    stand: Stand,
    on_check: Callable[[str, CheckResult | None], None],
) -> GradingPlugin:
    problem = order.problem
    files = [problem.visible_checks]
    if (hidden := _hidden_checks(order)) is not None:
        files.append(hidden)
    plugin = GradingPlugin(
        stand.backend,
        stand.launcher,
        problem,
        order.submission,
        order.seed,
        order.only,
        on_check,
        stand.turns,
        brief=not order.hidden,
    )
    arguments = [*map(str, files), "--import-mode=importlib", "-p", "no:cacheprovider"]
    arguments += ["-p", "no:terminal", "-c", os.devnull, f"--rootdir={problem.folder}"]
    arguments += ["-o", "junit_family=xunit2"]
    arguments += ["-o", f"pythonpath={shlex.quote(str(problem.folder))}"]
    if order.junit is not None:
        arguments.append(f"--junitxml={order.junit}")
    with _clean_pytest_environment():
        status = pytest.main(arguments, plugins=[plugin])
    plugin.interrupted |= status == pytest.ExitCode.INTERRUPTED
    return plugin


@contextmanager
def _clean_pytest_environment() -> Iterator[None]:
    """Nothing from outside decides how the checks run: no plugins, options or byte code."""
    saved = {name: os.environ.pop(name, None) for name in _PYTEST_VARIABLES}
    byte_code, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        sys.dont_write_bytecode = byte_code
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update({name: value for name, value in saved.items() if value is not None})
