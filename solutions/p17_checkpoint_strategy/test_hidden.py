"""Harder cases of problem 17, not shown to a learner."""

import time
from contextlib import contextmanager

import numpy as np
import pytest

from cluster.interface import Unfit
from grader.compare import expect_equal, explain, output
from grader.ended import Failed

MIB = 1 << 20
KILLED_JOBS = 7


def make_bases(rng, ranks, size_bytes):
    shape = size_bytes // 8
    return [
        {"base": rng.integers(-100_000, 100_000, shape).astype(np.float32)} for _ in range(ranks)
    ]


def script(*steps, **params):
    return {"mode": "script", "steps": [list(step) for step in steps], **params}


def expect_step(run, bases, allowed, *, where, cause, next_step):
    """Every rank restored the same step of `allowed`, and what it had saved then."""
    steps = [int(output(outputs, "step", r)[0]) for r, outputs in enumerate(run.outputs)]
    for rank, step in enumerate(steps):
        if step not in allowed or step != steps[0]:
            wanted = f"a step from {allowed[0]} to {allowed[-1]}, the same on all ranks"
            raise Failed(explain(wanted, f"{step}", f"on rank {rank} {where}", cause, next_step))
        if step != -1:
            expect_equal(
                output(run.outputs[rank], "weights", rank),
                bases[rank]["base"] + np.float32(step),
                where=f"in weights of step {step} on rank {rank} {where}",
                cause=cause,
                next_step=next_step,
            )


@contextmanager
def killing_all(job, ranks, after_s):
    yield
    time.sleep(after_s)
    for rank in ranks:
        job.kill(rank)


@pytest.mark.points(4)
@pytest.mark.cluster(hosts=1, slots=3)
@pytest.mark.needs("test_state_survives_the_process")
def test_kill_9_when_one_checkpoint_is_kept(cluster, rng, measure):
    """Three ranks keep one checkpoint only, and are killed at 21 random moments of saving.

    At no moment may there be none: the old one goes when all ranks have the new one, not before.
    """
    bases, everyone = make_bases(rng, 3, 2 * MIB), range(3)
    for number in range(KILLED_JOBS + 1):
        with cluster.job(3, f"job {number + 1}") as job:
            run = job.run(bases, script(("restore",), keep=1))
            progress = [output(outputs, "progress", r) for r, outputs in enumerate(run.outputs)]
            if any(p[2] for p in progress):
                raise Unfit("a rank was to be killed while it saved; it had come to its end before")
            confirmed, begun = min(p[1] for p in progress), max(p[0] for p in progress)
            expect_step(
                run,
                bases,
                range(confirmed, begun + 1),
                where=f"after kill {number}, keep = 1; wait() had confirmed step {confirmed}",
                cause="the old checkpoint is removed to make room before the new one is complete "
                "on all ranks.",
                next_step="prune last: after the rename, the fsync of the folder, and a look at "
                "who else has the step.",
            )
            if number < KILLED_JOBS:
                ending = killing_all(job, everyone, rng.uniform(0.05, 0.2))
                steps = script(("restore",), ("keep_saving",), keep=1)
                job.run(bases, steps, lost=everyone, during=ending)
    measure.note("ranks killed while they saved", 3 * KILLED_JOBS, "kills")


@pytest.mark.points(3)
@pytest.mark.needs("test_state_survives_the_process")
def test_a_damaged_shard_sends_all_ranks_back(cluster, rng):
    """One file of the newest step lost its end, then one bit of another: all ranks go back a step.

    The rank whose shard is whole as well: two ranks at two steps are no training.
    """
    for how in ("cut", "flip"):
        bases = make_bases(rng, 2, MIB)
        older, newer = (10, 20) if how == "cut" else (30, 40)
        both = [("save", older), ("wait",), ("remember",), ("save", newer), ("wait",)]
        with cluster.job(2, f"{how} a shard") as job:
            job.run(bases, script(*both, ("damage", how)))
        with cluster.job(2, "a new job") as job:
            run = job.run(bases, script(("restore",)))
        what = "had lost its second half" if how == "cut" else "had one other bit"
        expect_step(
            run,
            bases,
            [older],
            where=f"when a file of step {newer} {what}",
            cause="a shard counts because it has a name; or each rank looks at its own alone.",
            next_step="store length and checksum with each shard; check all ranks' in restore.",
        )


@pytest.mark.points(3)
@pytest.mark.needs("test_a_step_counts_once_every_rank_has_saved_it")
def test_halves_of_two_runs_make_no_checkpoint(cluster, rng):
    """Rank 0 saved step 20 and died with its job; in the next, rank 1 saves step 20, and dies.

    Each half is whole, they have one step's name, and they are of two different trainings.
    """
    bases = make_bases(rng, 2, MIB)
    with cluster.job(2, "first life") as job:
        job.run(bases, script(("save", 10), ("wait",), ("meet",), ("save", 20, [0]), ("wait",)))
    with cluster.job(2, "second life") as job:
        job.run(bases, script(("restore",), ("save", 20, [1], 500), ("wait",)))
    with cluster.job(2, "third life") as job:
        run = job.run(bases, script(("restore",)))
    expect_step(
        run,
        bases,
        [10],
        where="after rank 0 saved step 20 in one life and rank 1 in the next",
        cause="shards of a step that never became complete stay, and a later run completes it.",
        next_step="let restore remove this rank's own shards of steps newer than the restored one.",
    )
