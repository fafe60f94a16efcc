"""Harder cases of problem 04, not shown to a learner."""

import numpy as np
import pytest
from test_grade import (
    OPTIMIZER,
    RANKS,
    average,
    cuts,
    expect_means,
    expect_steps,
    make_gradients,
    run_adam,
)

from grader.compare import output
from grader.ended import Failed


@pytest.mark.points(4)
@pytest.mark.needs("test_fp16_means_on_four_ranks")
def test_infinities_reach_every_rank_and_nothing_else(cluster, rng):
    """An infinity or a NaN on one rank shows on every rank, so that all can leave the step out.

    Other tensors, and other elements of the same tensor, are as if it were not.
    """
    shapes = [[50], [60], [70]]
    with cluster.job(RANKS, "infinities") as job:
        for bad in (np.inf, -np.inf, np.nan):
            tensors = [
                [rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(RANKS)
            ]
            rank, element = int(rng.integers(RANKS)), int(rng.integers(60))
            tensors[rank][1][element] = bad
            run, flat, _ = average(job, tensors)
            place = cuts(shapes)[0] + element
            for other, outputs in enumerate(run.outputs):
                mean = outputs["mean"] = output(outputs, "mean", other).copy()
                if mean.shape != flat[0].shape or np.isfinite(mean[place]):
                    raise Failed(
                        f"expected an infinity or NaN, got a number, at element [{element}] of "
                        f"tensor 1 on rank {other}, where rank {rank} has {bad}.\nUsual cause: "
                        "values are clipped to what float16 holds.\nNext step: let them through."
                    )
                mean[place], flat[:, place] = 0, 0
            expect_means(
                run,
                flat,
                shapes,
                f"with {bad} in one element",
                cause="the scale was computed from the infinity.",
                next_step="take the largest of the finite values.",
            )


@pytest.mark.points(3)
@pytest.mark.needs("test_compressed_steps_follow_the_definition")
def test_errors_are_carried_through_many_steps(cluster, rng):
    """Twenty-five compressed steps, shapes drawn at grading time, on 3 ranks and on 1."""
    optimizer = {**OPTIMIZER, "betas": [0.8, 0.95], "warmup_steps": 2}
    with cluster.job(3, "many steps") as job:
        for ranks in (3, 1):
            shapes = [[int(s) for s in rng.integers(1, 5, rng.integers(0, 3))] for _ in range(4)]
            inputs, want = make_gradients(rng, ranks, 27, shapes, optimizer)
            expect_steps(
                run_adam(job, inputs, shapes, optimizer),
                want,
                2,
                cause="an error is dropped after some steps, or chunks of few elements are cut "
                "differently.",
                next_step="compare with numpy.array_split for lengths 1, 2 and 4 on 3 ranks.",
            )


@pytest.mark.points(3)
@pytest.mark.needs("test_compressed_steps_follow_the_definition")
def test_a_parameter_without_gradient_counts_as_zero(cluster, rng):
    """Rank 1 has no `.grad` for one parameter, in warm-up and after: its share is zero."""
    shapes = [[40], [11, 3]]
    with cluster.job(2, "no gradient") as job:
        inputs, want = make_gradients(rng, 2, 7, shapes, without=(1, slice(40, 73)))
        expect_steps(
            run_adam(job, inputs, shapes, without=[1, 1]),
            want,
            OPTIMIZER["warmup_steps"],
            cause="a parameter without gradient is left out, and its momentum stands still.",
            next_step="take zeros_like(parameter) where .grad is None.",
        )
