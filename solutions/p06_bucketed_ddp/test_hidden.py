"""Harder cases of problem 06, not shown to a learner."""

import pytest
from test_grade import (
    SAME_TRAINING,
    OneProcess,
    Parts,
    expect_gradients,
    make_digits,
    state_of,
    train,
)

from grader.compare import expect_close, output

MIB = 1 << 20


@pytest.mark.points(4)
@pytest.mark.needs("test_ranks_may_have_fewer_batches", "test_accumulation_sends_once_per_window")
def test_uneven_windows_of_micro_batches(cluster, rng):
    """join() and no_sync() together, with buffers: ranks have 2, 5 and 7 micro-batches, k = 2.

    Windows are counted, not micro-batches: rank 0 leaves after 1 window, rank 1 after 3.
    """
    seed = int(rng.integers(1, 1000))
    with cluster.job(3, "uneven windows") as job:
        for steps in ([2, 5, 7], [6, 1, 4]):
            inputs = make_digits(rng, steps)
            twin = OneProcess(seed, inputs, 0.125, accumulate=2)
            params = {"model": {"kind": "digits", "seed": seed}, "state": True, "cap_mb": 0.01}
            run = job.run(inputs, {**params, "accumulate": 2, "join": True}, output_bytes=MIB)
            for rank, outputs in enumerate(run.outputs):
                for name, want in state_of(twin.module).items():
                    expect_close(
                        output(outputs, name, rank),
                        want,
                        relative=SAME_TRAINING,
                        where=f"in the {name} of rank {rank} after {steps} micro-batches",
                        cause="buffers come from a rank that has left, or who trains is asked "
                        "within no_sync().",
                        next_step="let both come from the lowest rank that still trains.",
                    )


@pytest.mark.points(3)
@pytest.mark.needs(
    "test_a_parameter_may_be_unused_on_one_rank", "test_accumulation_sends_once_per_window"
)
def test_what_only_an_early_micro_batch_used(cluster, rng):
    """A parameter that only the first of three micro-batches reached is averaged as well.

    The parts are in float32 and float64 by turns, and of shapes drawn at grading time.
    """
    shapes = [tuple(int(s) for s in rng.integers(1, 9, rng.integers(0, 3))) for _ in range(6)]
    parts = Parts(shapes, single=[0, 2, 5])
    inputs = [parts.batches(rng, 6) for _ in range(3)]
    for given in inputs:
        for part in (1, 3, 4):  # more digits than float32 has, where they have a place
            given["x"][:, parts.cuts[part] : parts.cuts[part + 1]] += 2.0**-20
    orders = [[rng.permutation(6)[: rng.integers(1, 4)].tolist() for _ in range(6)] for _ in inputs]
    orders[0][0], orders[0][1:3] = [5, 0, 1, 3], [[2], [2]]
    with cluster.job(3, "early use") as job:
        for cap_mb in (100 / MIB, 25.0):
            run = train(job, parts, inputs, orders, cap_mb=cap_mb, accumulate=3, find_unused=True)
            expect_gradients(
                run,
                parts,
                inputs,
                orders,
                accumulate=3,
                cause="only what the last micro-batch reached is sent, not what earlier ones left "
                "in .grad; or float64 shares a bucket with float32.",
                next_step="note in the hooks what was used, within no_sync() too.",
            )


@pytest.mark.points(3)
@pytest.mark.needs(
    "test_a_parameter_may_be_unused_on_one_rank", "test_ranks_may_have_fewer_batches"
)
def test_unused_parameters_and_uneven_batches(cluster, rng):
    """Ranks with fewer batches and ranks that leave parameters out, in one training."""
    parts = Parts([(20,)] * 5)
    with cluster.job(4, "both") as job:
        for _ in range(3):
            inputs = [parts.batches(rng, int(rng.integers(0, 5))) for _ in range(3)]
            inputs.append(parts.batches(rng, 5))
            orders = [
                [rng.permutation(5)[: rng.integers(1, 5)].tolist() for _ in rank["x"]]
                for rank in inputs
            ]
            run = train(job, parts, inputs, orders, cap_mb=320 / MIB, find_unused=True, join=True)
            expect_gradients(
                run,
                parts,
                inputs,
                orders,
                cause="a rank without data leaves out the reduction that tells what was used.",
                next_step="list all collectives of one step; the one who stands in does the same.",
            )
