"""Grade many submissions of one problem, one after another, in a process of its own.

What takes seconds is done once: the enclosure, the network-fault engine, the parent process that
has torch loaded. Each check of each submission still has fresh hosts.

    python -m grader.grading_server PROBLEM     a request a line on stdin, a result a line on stdout
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

from grader.package import Problem, find


class GradingServerDied(Exception):
    """The process ended, or gave no result in time: it has to be started anew."""


class GradingServer:
    """The caller's side. A context manager; leaving it ends the process."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        environment = {k: v for k, v in os.environ.items() if k != "DISTLAB_ENCLOSURE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.grading_server", problem.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def grade(self, path: Path, only: Sequence[str] = (), timeout_s: float = 300) -> dict[str, Any]:
        """The JSON result of one submission. only: names of checks. Raises GradingServerDied."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"path": str(path), "only": list(only)}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except (OSError, queue.Empty):
            line = ""
        if not line:
            self.close()
            raise GradingServerDied(f"{path.name} could not be graded within {timeout_s:g} s")
        return dict(json.loads(line))

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
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


def main() -> None:
    """Serve until stdin ends."""
    from cluster import enclosure

    enclosure.enter()
    # Results go out through a descriptor that nothing else prints to.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Imported here: numpy starts threads, and an enclosure is entered before there are any.
    from cluster.backends.netns import NetnsBackend
    from grader import submission
    from grader.result_json import to_json
    from grader.seeds import Seed
    from grader.session import Order, grade, open_stand

    problem = find(sys.argv[1])
    with open_stand(problem, NetnsBackend) as stand:
        for line in sys.stdin:
            request = json.loads(line)
            handed_in = submission.read(Path(request["path"]), problem)
            only = frozenset(request["only"])
            result = grade(Order(problem, handed_in, Seed.fresh(), only=only), nullcontext(stand))
            results.write(json.dumps(json.loads(to_json(result))) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
