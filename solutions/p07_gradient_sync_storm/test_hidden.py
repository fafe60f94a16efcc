"""Harder cases of problem 07, not shown to a learner."""

import time

import numpy as np
import pytest

from grader.compare import expect_equal, output
from grader.ended import Failed

KIB = 1 << 10


def make_step(rng, ranks, lengths):
    """Whole numbers for each rank, submitted in an order of its own."""
    size = int(lengths.sum())
    return [
        {
            "gradient": rng.integers(-1000, 1000, size).astype(np.float32),
            "lengths": lengths,
            "order": rng.permutation(len(lengths)),
            "slow": np.array([False]),
        }
        for _ in range(ranks)
    ]


def step(job, rng, ranks, lengths, where, **params):
    inputs = make_step(rng, ranks, lengths)
    run = job.run(inputs, params)
    want = sum(rank["gradient"] for rank in inputs)
    for rank, outputs in enumerate(run.outputs):
        expect_equal(
            output(outputs, "sum", rank), want, where=f"on rank {rank} of {ranks}, {where}"
        )
    return run


@pytest.mark.points(5)
@pytest.mark.needs("test_every_tensor_gets_its_sum")
def test_layouts_that_nobody_told_you_of(cluster, rng):
    """Layouts, buffers and windows drawn at grading time: empty tensors, tensors of one element,
    buffers smaller than a tensor and larger than the whole gradient.
    """
    with cluster.job(4, "drawn layouts") as job:
        for number in range(10):
            lengths = rng.integers(0, [2, 70, 3000][number % 3], int(rng.integers(2, 60)))
            lengths[rng.integers(len(lengths))] = 0 if number else 1
            lengths[0] += 1
            fusion = int(rng.choice([64, 4 * KIB, 1024 * KIB]))
            where = f"{len(lengths)} tensors, {int(lengths.sum()):,} elements, fusion {fusion:,}"
            step(
                job,
                rng,
                int(rng.integers(2, 5)),
                lengths,
                where,
                fusion_bytes=fusion,
                window_bytes=int(rng.choice([4, 96])) * KIB,
            )


@pytest.mark.points(5)
@pytest.mark.fault("rate 50mbit delay 10ms limit 12 packets on all")
@pytest.mark.needs("test_the_queue_does_not_overflow")
def test_a_narrower_window_is_kept(cluster, rng, measure):
    """With a queue of 12 packets and a window of 48 KiB, at most 1 packet in 200 is lost."""
    lengths = np.full(1000, 350)
    with cluster.job(4, "a shorter queue") as job:
        buffers = {"fusion_bytes": 32 * KIB, "window_bytes": 48 * KIB}
        step(job, rng, 4, lengths, "a narrow window", **buffers)
        before = packets(cluster)
        for _ in range(4):
            step(job, rng, 4, lengths, "a narrow window", **buffers)
        sent, received = packets(cluster) - before
        measure.note("packets lost", sent - received, "packets")
        if sent - received > 0.005 * sent:
            raise Failed(
                f"{sent - received:,} of {sent:,} packets found the queue full; at most 1 in 200 "
                "is right.\nUsual cause: a window chosen for other links.\nNext step: work out how "
                "many buffers may be under way from window_bytes."
            )


def packets(cluster):
    time.sleep(0.15)
    counted = [host.data_bytes() for host in cluster.cluster.hosts]
    return np.array(
        [sum(t.sent_packets for t in counted), sum(t.received_packets for t in counted)]
    )
