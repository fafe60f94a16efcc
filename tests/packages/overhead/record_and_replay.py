"""Grade problem 03's reference while noting what it runs, then run just that through mpirun.

Prints one JSON object: seconds of the grading, and of the bare jobs together.
"""
# ruff: noqa: E402  (an enclosure is entered before numpy starts its threads)

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster import enclosure

enclosure.enter()

from cluster.backends.netns import NetnsBackend
from cluster.launchers.job import DEFAULT_OPTIONS
from cluster.launchers.mpirun import MpirunLauncher
from cluster.launchers.program import Program
from grader import bench, rank_job, session
from grader.bench import Bench, Wanted
from grader.package import find
from grader.seeds import Seed
from grader.submission import read

HERE = Path(__file__).resolve().parent
jobs: list[dict[str, Any]] = []


def note_jobs() -> None:
    """Wrap what starts jobs and runs cases, so that each is noted and nothing else changes."""
    start, run, spec, fault = (
        bench.RankJob.__enter__,
        rank_job.RankJob.run,
        bench.cluster_spec,
        Bench.fault,
    )
    size: dict[str, Any] = {}

    def noted_spec(problem, submission, wanted):
        made = spec(problem, submission, wanted)
        size.update(hosts=made.hosts, slots=made.slots, through=made.network_faults, faults=[])
        return made

    def noted_fault(self, line):
        size["faults"].append(line)
        fault(self, line)

    def noted_start(self):
        jobs.append(
            {**size, "faults": list(size["faults"]), "ranks": self._order.ranks, "cases": []}
        )
        return start(self)

    def noted_run(self, inputs, params=None, **options):
        shapes = {k: (list(a.shape), str(a.dtype)) for k, a in inputs[0].items()}
        jobs[-1]["cases"].append({"ranks": len(inputs), "params": params or {}, "inputs": shapes})
        return run(self, inputs, params, **options)

    bench.cluster_spec, Bench.fault = noted_spec, noted_fault
    rank_job.RankJob.__enter__, rank_job.RankJob.run = noted_start, noted_run


def bare_seconds(problem, submission, folder: Path) -> float:
    """Run every noted job through mpirun alone; from its start to its end."""
    total = 0.0
    with NetnsBackend() as backend:
        for number, job in enumerate(jobs):
            cases = folder / f"cases{number}.json"
            cases.write_text(json.dumps(job["cases"]))
            files = {**submission.files, "bare/cases.json": cases}
            files["bare/program.py"] = HERE / "bare_program.py"
            shown = type(submission)(
                submission.path, submission.entry, files, submission.source, submission.tree
            )
            wanted = Wanted(job["hosts"], job["slots"], job["through"])
            stand = Bench(backend, MpirunLauncher(), problem, shown, wanted)
            for line in job["faults"]:
                stand.fault(line)

            def program(host) -> Program:
                names = ("bare/cases.json", "submission/solution.py", "problem/driver.py")
                return Program(host.path("bare/program.py"), tuple(map(host.path, names)))

            began = time.monotonic()
            running = MpirunLauncher().start(stand.cluster, program, job["ranks"], DEFAULT_OPTIONS)
            status = running.wait(60)
            total += time.monotonic() - began
            if status != 0:
                sys.exit(f"a bare job ended with {status}: {running.output()[-2000:]}")
            running.end()
            stand.close()
    return total


def main() -> None:
    problem = find("03")
    submission = read(problem.private_folder / "solution.py", problem)
    note_jobs()
    firsts: list[float] = []
    began = time.monotonic()

    def on_check(_name, result) -> None:
        if result is not None:
            firsts.append(time.monotonic() - began)

    order = session.Order(problem, submission, Seed(11))
    result = session.grade(order, session.open_stand(problem, NetnsBackend), on_check)
    graded = time.monotonic() - began
    with tempfile.TemporaryDirectory() as folder:
        bare = bare_seconds(problem, submission, Path(folder))
    print(
        json.dumps(
            {
                "score": result.score,
                "graded_s": graded,
                "bare_s": bare,
                "first_verdict_s": firsts[0],
                "jobs": len(jobs),
                "cases": sum(len(job["cases"]) for job in jobs),
            }
        )
    )


main()
