"""Harder cases of problem 02, not shown to a learner."""

import numpy as np
import pytest

from grader.compare import expect_equal, output
from grader.ended import Failed


@pytest.mark.points(5)
@pytest.mark.needs("test_every_length_and_rank_count")
def test_a_group_numbers_its_ranks_by_itself(cluster, rng):
    """In a group of some of the job's ranks, the sum is theirs, and the others are left alone."""
    for members in ((1, 2, 3), (0, 2), (1, 3)):
        with cluster.job(4, f"ranks {members}") as job:
            inputs = [{"x": rng.integers(-99, 99, 1001).astype(np.float32)} for _ in range(4)]
            run = job.run(inputs, {"part": "all_reduce", "members": members})
            total = np.sum([inputs[rank]["x"] for rank in members], axis=0)
            for rank, outputs in enumerate(run.outputs):
                expect_equal(
                    output(outputs, "x", rank),
                    total if rank in members else inputs[rank]["x"],
                    where=f"on rank {rank} of the job, in a group of its ranks {members}",
                    cause="numbers within the group taken for numbers in the job.",
                    next_step="say group_dst and group_src instead of dst and src.",
                )


CALLS = (
    ("cost", (0, 8, 1e-3, 1e-9, "ring")),
    ("cost", (4, 8, 1e-3, 1e-9, "butterfly")),
    ("cost", (1, 8, 1e-3, 1e-9, "butterfly")),
    ("ring_schedule", (0,)),
    ("crossover", (0, 1e-3, 1e-9)),
)


@pytest.mark.points(5)
@pytest.mark.cluster(hosts=1, slots=1)
@pytest.mark.needs("test_costs_for_every_rank_count")
def test_bad_arguments_are_refused(cluster):
    """No ranks, or an algorithm that there is not, raise ValueError."""
    with cluster.job(1, "bad arguments") as job:
        run = job.run([{}], {"part": "refusals", "calls": CALLS})
    raised = output(run.outputs[0], "raised", 0)
    if raised.shape != (len(CALLS), 2):
        raise Failed(f"rank 0 handed in {raised.dtype} of shape {raised.shape}")
    for (name, arguments), (kind, text) in zip(CALLS, raised, strict=True):
        if str(kind) != "ValueError":
            raise Failed(
                f"{name}{arguments}: expected ValueError, got {kind} {str(text)!r}.\n"
                "Next step: look at n and at the algorithm's name before anything else."
            )
