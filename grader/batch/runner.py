"""Have entries graded by processes that may hang or die without taking the batch with them."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader.batch.journal import MISTAKE, Verdict
from grader.class_folder import Entry
from grader.grading_server import GradingServer, GradingServerDied
from grader.outcome import Outcome
from grader.package import Problem
from grader.report.plain_text import one_line
from grader.result_json import from_json, to_json
from grader.submission import SubmissionError
from grader.turns import Manners

_ATTEMPTS = 2


@dataclass(frozen=True)
class Work:
    """An entry that has to be graded, and the digest of what it holds."""

    entry: Entry
    digest: str


@dataclass(frozen=True)
class Began:
    """A grading has begun."""

    work: Work


@dataclass(frozen=True)
class Ended:
    """A grading has ended, with whatever verdict. result: the grading as JSON, if there is one."""

    work: Work
    verdict: Verdict
    result: str = ""


Event = Began | Ended


def longest_grading_s(problem: Problem) -> float:
    """When a grading has hung for certain: no check runs into its limits more often than this."""
    files = filter(None, (problem.visible_checks, problem.hidden_checks))
    checks = sum(path.read_text().count("\ndef test_") for path in files)
    return 300 + checks * (problem.limits.load + 3 * problem.limits.case)


class Runner:
    """Grades in `jobs` threads, each with a grading process of its own.

    deadline_s: for one grading; None: as the problem's own limits allow. A context manager;
    leaving it ends what still runs.
    """

    def __init__(self, works: Sequence[Work], jobs: int, deadline_s: float | None = None) -> None:
        self._manners = Manners.ALONE if jobs == 1 else Manners.SHARED
        self._deadline_s = deadline_s
        self._waiting: queue.SimpleQueue[Work] = queue.SimpleQueue()
        for work in works:
            self._waiting.put(work)
        self._events: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
        self._servers: dict[int, GradingServer] = {}
        self._stopped, self._changing = threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(min(jobs, len(works)))
        ]

    def events(self) -> Iterator[Event]:
        """What happens, as it happens, until everything is graded."""
        for thread in self._threads:
            thread.start()
        running = len(self._threads)
        while running:
            event = self._events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield event

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._stopped.set()
        for server in list(self._servers.values()):
            server.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _work(self, number: int) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    work = self._waiting.get_nowait()
                except queue.Empty:
                    break
                self._events.put(Began(work))
                ended = self._grade(number, work)
                if ended is not None:
                    self._events.put(ended)
        except Exception as error:  # a fault of distlab's own: the batch must hear of it
            self._events.put(error)
        finally:
            self._drop(number)
            self._events.put(None)

    def _grade(self, number: int, work: Work) -> Ended | None:
        """The verdict on one entry; None when the batch was stopped meanwhile."""
        entry, began = work.entry, time.monotonic()
        if len(entry.paths) > 1:
            problem = f"problem {entry.problem.number:02d}"
            sentence = f"{problem} is handed in more than once: {entry.shown}; leave one of them"
            return _ungraded(work, MISTAKE, sentence, began)
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                return self._ask(self._server_for(number, entry.problem), work)
            except SubmissionError as mistake:
                sentence = str(mistake).replace(str(entry.paths[0]), entry.shown)
                return _ungraded(work, MISTAKE, sentence, began)
            except GradingServerDied as death:
                self._drop(number)
                if self._stopped.is_set():
                    return None
                reason = one_line(str(death))
        sentence = f"it could not be graded, {_ATTEMPTS} times: {reason}"
        return _ungraded(work, Outcome.UNFIT, sentence, began)

    def _ask(self, server: GradingServer, work: Work) -> Ended:
        path: Path = work.entry.paths[0].absolute()
        deadline_s = self._deadline_s or longest_grading_s(work.entry.problem)
        answer = server.grade(path, timeout_s=deadline_s)
        result = replace(from_json(json.dumps(answer)), submission=work.entry.shown)
        return Ended(work, Verdict.of(work.entry, work.digest, result), to_json(result))

    def _server_for(self, number: int, problem: Problem) -> GradingServer:
        server = self._servers.get(number)
        if server is None or server.problem != problem or not server.alive():
            self._drop(number)
            with self._changing:
                if self._stopped.is_set():
                    raise GradingServerDied("the batch was stopped")
                server = self._servers[number] = GradingServer(problem, self._manners, quiet=True)
        return server

    def _drop(self, number: int) -> None:
        server = self._servers.pop(number, None)
        if server is not None:
            server.close()


def _ungraded(work: Work, outcome: str, sentence: str, began: float) -> Ended:
    seconds = time.monotonic() - began
    verdict = Verdict.without_result(work.entry, work.digest, outcome, sentence, seconds)
    return Ended(work, verdict)
