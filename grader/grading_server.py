"""Grade many submissions of one problem, one after another, in a process of its own.

What takes seconds is done once: the enclosure, the network-fault engine, the parent process that
has torch loaded. Each check of each submission still has fresh hosts.

    python -m grader.grading_server PROBLEM MANNERS
        a request a line on stdin, a result a line on stdout
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from grader.package import Problem, find
from grader.submission import SubmissionError
from grader.turns import Manners

if TYPE_CHECKING:
    from grader.session import Stand

_CLOSE_TIMEOUT_S = 10


class GradingServerDied(Exception):
    """The process ended, or gave no result in time: it has to be started anew."""


class GradingServer:
    """The caller's side. A context manager; leaving it ends the process, and so does the end of
    the caller, whichever way it comes. The thread that makes it has to outlive it.

    quiet: keep what the process prints to oneself; its last line is told when it dies.
    """

    def __init__(
        self, problem: Problem, manners: Manners = Manners.FREE, *, quiet: bool = False
    ) -> None:
        self.problem = problem
        environment = {k: v for k, v in os.environ.items() if k != "DISTLAB_ENCLOSURE"}
        self._log = tempfile.TemporaryFile("w+", errors="replace") if quiet else None  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.grading_server", problem.name, manners],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,  # the caller alone decides what an interrupt ends
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def grade(self, path: Path, only: Sequence[str] = (), timeout_s: float = 300) -> dict[str, Any]:
        """The JSON result of one submission. only: names of checks.

        Raises SubmissionError as `submission.read` does, and GradingServerDied.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"path": str(path), "only": list(only)}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise GradingServerDied(f"there was no verdict within {timeout_s:g} s") from None
        except (OSError, ValueError):  # a pipe that broke, or was closed
            line = ""
        if not line:
            self.close()
            raise GradingServerDied(f"the grading process {self._how_it_ended()}")
        answer = dict(json.loads(line))
        if "mistake" in answer:
            raise SubmissionError(str(answer["mistake"]))
        return answer

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it may hold a request that nobody reads any more
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _how_it_ended(self) -> str:
        status = self._process.poll()
        ended = f"ended with status {status}" if status is not None else "gave no result"
        if self._log is None:
            return ended
        self._log.seek(0)
        last = [line.strip() for line in self._log if line.strip()][-1:]
        return f"{ended}: {last[0]}" if last else ended


class _Caller:
    """Watches the pipe from the caller: a grading that nobody waits for must not go on."""

    def __init__(self) -> None:
        self.busy = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        hung_up = select.poll()
        hung_up.register(0, 0)  # POLLHUP and POLLERR are always reported, unread requests or not
        hung_up.poll()
        while not self.busy:  # the loop over requests ends by itself
            time.sleep(0.05)
        os._exit(1)  # the enclosure takes everything with it


@contextmanager
def _stand(
    problem: Problem, manners: Manners
) -> Iterator[Callable[[], AbstractContextManager[Stand]]]:
    """One stand for all gradings; where it cannot be set up, each grading says so as unfit."""
    from cluster.backends.netns import NetnsBackend
    from cluster.interface import ClusterError
    from grader.session import open_stand

    with ExitStack() as stack:
        try:
            stand = stack.enter_context(open_stand(problem, NetnsBackend, manners))
        except ClusterError:
            yield lambda: open_stand(problem, NetnsBackend, manners)
        else:
            yield lambda: nullcontext(stand)


def main() -> None:
    """Serve until stdin ends."""
    from cluster import enclosure, linux

    # By the kernel, at once: a fork bomb may leave this process no time to notice anything.
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    enclosure.enter()
    # Results go out through a descriptor that nothing else prints to.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Imported here: numpy starts threads, and an enclosure is entered before there are any.
    from grader import submission
    from grader.result_json import to_json
    from grader.seeds import Seed
    from grader.session import Order, grade

    caller = _Caller()
    problem = find(sys.argv[1])
    with _stand(problem, Manners(sys.argv[2])) as stand:
        for line in sys.stdin:
            caller.busy = True
            request = json.loads(line)
            try:
                handed_in = submission.read(Path(request["path"]), problem)
            except SubmissionError as mistake:
                answer = {"mistake": str(mistake)}
            else:
                only = frozenset(request["only"])
                order = Order(problem, handed_in, Seed.fresh(), only=only)
                answer = json.loads(to_json(grade(order, stand())))
            results.write(json.dumps(answer) + "\n")
            results.flush()
            caller.busy = False


if __name__ == "__main__":
    main()
