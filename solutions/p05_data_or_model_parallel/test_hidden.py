"""Harder cases of problem 05, not shown to a learner."""

import numpy as np
import pytest
from test_grade import (
    EQUAL,
    MIB,
    STRATEGIES,
    draw_numbers,
    expect_parts,
    rounds_of,
    shape_of,
    step_and_compare,
)


@pytest.mark.points(4)
@pytest.mark.needs("test_sizes_that_ranks_do_not_divide")
def test_fewer_features_than_ranks(cluster, rng):
    """Sides drawn from 1 to 8 on 3 ranks: some ranks have no feature, or no row, at all."""
    with cluster.job(3, "drawn sides") as job:
        for sides in ([1, 5, 4], [4, 2, 1], rng.integers(1, 9, 3).tolist()):
            bias = bool(rng.integers(2))
            cases = [(s, shape_of(*sides, w, 8, bias)) for s in STRATEGIES for w in (False, True)]
            step_and_compare(job, rng, 3, cases)


@pytest.mark.points(3)
@pytest.mark.needs(*EQUAL)
def test_the_first_layer_of_a_model_sends_no_gradient_of_x(cluster, rng, measure):
    """x is data, and nobody asks for its gradient: a column layer sends nothing in its step."""
    shape = shape_of(300, 200, 100)
    given = draw_numbers(rng, "l", shape)
    with cluster.job(3, "first layer") as job:
        job.run([given] * 3, {"layers": {"l": ["column", shape]}})
        run = job.run([{}] * 3, {"steps": ["l"], "x_learns": False}, output_bytes=MIB)
        expect_parts(run, "l", "column", shape, given, without=("dx",))
        measure.at_most(
            "bytes that a host sends, against an all-reduce of the gradient of x",
            max(t.sent_bytes for t in run.traffic) / sum(rounds_of("column", shape, 3)),
            0.1,
            "x",
            else_="Usual cause: the gradient is summed by a hook or by hand, asked for or not.\n"
            "Next step: an autograd.Function around x is left out of backward by itself.",
        )


@pytest.mark.points(3)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.needs("test_bytes_are_those_of_the_plan")
def test_uneven_parts_on_four_hosts_send_no_more(cluster, rng, measure):
    """With 4 hosts, float32, and sides that 4 does not divide, the bytes stay at the least."""
    for strategy, whole in (("data", True), ("column", True), ("row", False)):
        sides = 4 * rng.integers(60, 90, 3) + rng.integers(1, 4, 3)
        shape = shape_of(*sides.tolist(), whole, 4)
        given = draw_numbers(rng, "l", shape)
        with cluster.job(4, strategy) as job:
            job.run([given] * 4, {"layers": {"l": [strategy, shape]}})
            run = job.run([{}] * 4, {"steps": ["l"], "sums": True}, output_bytes=MIB)
        expect_parts(run, "l", strategy, shape, given, sums=True)
        least = sum(rounds_of(strategy, shape, 4))
        worst = int(np.argmax([t.sent_bytes for t in run.traffic]))
        measure.at_most(
            f"{strategy}: bytes sent against the least",
            run.traffic[worst].sent_bytes / least,
            1.12,
            "x",
            else_=f"node{worst + 1} sends the most. Usual cause: parts padded to more than "
            "ceil(size / n).\nNext step: pad by one row or column at most.",
        )
