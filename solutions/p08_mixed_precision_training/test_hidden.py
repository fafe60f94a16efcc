"""Harder cases of problem 08, not shown to a learner."""

import numpy as np
import pytest
from test_grade import (
    QUIET,
    ROUNDING,
    Parts,
    expect_decisions,
    expect_parameters,
    scale_rules,
    train,
)


@pytest.mark.points(4)
@pytest.mark.needs("test_all_ranks_skip_the_same_step")
def test_what_overflows_only_on_the_wire(cluster, rng):
    """bfloat16 holds gradients that float16 on the wire does not: the vote is on the sum.

    Forward and backward are finite everywhere. Once all shares fit, and their sum does not; once
    a rank's share overflows in the cast.
    """
    parts = Parts([(20,), (3, 3)])
    with cluster.job(3, "overflow on the wire") as job:
        for ranks in (3, 2):
            inputs = parts.batches(rng, ranks, 6, 3)
            skipped = sorted(int(s) for s in rng.choice(6, 2, replace=False))
            element = int(rng.integers(29))
            for rank in inputs:  # times the scale of 1024: 102,400, of which each sends its nth
                rank["x"][skipped[0], :, element] = 100
            inputs[int(rng.integers(ranks))]["x"][skipped[1], :, element] = 1e6
            run = train(job, inputs, parts.model, compute="bfloat16", wire="float16")
            found = [step in skipped for step in range(6)]
            expect_decisions(
                run,
                list(scale_rules(found, **QUIET))[1:],
                skipped,
                cause="the vote is on gradients before they are cast to wire_dtype and summed.",
                next_step="cast, sum, look for inf in the sum, then vote.",
            )
            want = parts.descend(inputs, skipped)
            expect_parameters(run, want, ROUNDING["bfloat16"], cause="see the visible checks.")


@pytest.mark.points(3)
@pytest.mark.needs("test_one_step_equals_one_process")
def test_the_scale_changes_between_steps_only(cluster, rng):
    """With growth_interval 3 and four micro-batches, the scale doubles after 3, 6 and 9 steps.

    The step after which it changes is unscaled by the old one.
    """
    parts = Parts([(12,), (4,)])
    with cluster.job(2, "growth") as job:
        inputs = parts.batches(rng, 2, 10, 4)
        scaler = {"init_scale": 16.0, "growth_interval": 3}
        run = train(job, inputs, parts.model, scaler=scaler)
        expect_decisions(
            run,
            list(scale_rules([False] * 10, **scaler))[1:],
            cause="update() is called for each micro-batch, or not when all is well.",
            next_step="call it once, at the end of train_step.",
        )
        expect_parameters(
            run,
            parts.descend(inputs),
            ROUNDING["float16"],
            cause="gradients are divided by a scale that has changed since backward.",
            next_step="update the scaler last.",
        )


@pytest.mark.points(3)
@pytest.mark.needs("test_the_mean_gradient_is_clipped_once")
def test_frozen_parameters_stay_out(cluster, rng):
    """Frozen parameters keep their values and take no part in the norm; shapes are drawn."""
    shapes = [tuple(int(s) for s in rng.integers(1, 6, rng.integers(0, 3))) for _ in range(5)]
    frozen = sorted(int(i) for i in rng.choice(5, 2, replace=False))
    for i in frozen:
        shapes[i] = (5, 8)
    parts = Parts(shapes, frozen=frozen)
    start = rng.integers(-4, 4, parts.total).astype(np.float32)
    with cluster.job(3, "frozen") as job:
        inputs = [{**rank, "start": start} for rank in parts.batches(rng, 3, 4, 2)]
        bound = 0.5 * np.linalg.norm(parts.gradient(inputs, 0))
        run = train(job, inputs, parts.model, max_norm=float(bound))
        expect_parameters(
            run,
            parts.descend(inputs, max_norm=bound),
            ROUNDING["float16"],
            cause="frozen parameters, which have no gradient, are taken for others.",
            next_step="use those parameters alone that require a gradient.",
        )
