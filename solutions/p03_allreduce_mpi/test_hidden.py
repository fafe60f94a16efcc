"""Harder cases of problem 03, not shown to a learner."""

import numpy as np
import pytest

from grader.compare import expect_equal, output

MIB = 1 << 20


@pytest.mark.points(5)
@pytest.mark.needs("test_every_rank_count_and_length", "test_every_type_and_operation")
def test_lengths_and_shapes_that_nobody_told_you_of(cluster, rng):
    """Lengths, rank counts, types and shapes drawn at grading time."""
    with cluster.job(12, "drawn cases") as job:
        for _ in range(12):
            ranks = int(rng.integers(1, 13))
            dtype = rng.choice(["float32", "float64", "int64"])
            shape = tuple(int(side) for side in rng.integers(1, 60, rng.integers(1, 4)))
            inputs = [{"sendbuf": rng.integers(-9, 9, shape).astype(dtype)} for _ in range(ranks)]
            want = np.sum([rank["sendbuf"] for rank in inputs], axis=0).astype(dtype)
            run = job.run(inputs)
            for rank, outputs in enumerate(run.outputs):
                expect_equal(
                    output(outputs, "recvbuf", rank),
                    want,
                    where=f"on rank {rank} of {ranks} ({dtype}, shape {shape})",
                    cause="only one-dimensional or evenly divisible vectors were thought of.",
                )


@pytest.mark.points(5)
@pytest.mark.cluster(hosts=5, slots=1)
@pytest.mark.needs("test_large_messages_use_the_bandwidth")
def test_five_hosts_use_the_bandwidth(cluster, rng, measure):
    """With five hosts and a length that five does not divide, the bytes stay at the least possible.

    Algorithms that fold down to a power of two send up to 1.7 times the least here.
    """
    ranks, length = 5, MIB + 3
    with cluster.job(ranks, "five hosts, counted") as job:
        # Every bit counts, so that nothing can be saved by packing.
        inputs = [{"sendbuf": rng.integers(-(2**63), 2**63, length)} for _ in range(ranks)]
        want = np.sum([rank["sendbuf"] for rank in inputs], axis=0)
        run = job.run(inputs)
        for rank, outputs in enumerate(run.outputs):
            expect_equal(output(outputs, "recvbuf", rank), want, where=f"on rank {rank} of 5")
        bound = 2 * (ranks - 1) / ranks * length * 8
        worst = max(t.sent_bytes for t in run.traffic)
        measure.at_most(
            "most bytes sent by a host, against the least possible",
            worst / bound,
            1.08,
            "x",
            else_="Usual cause: surplus ranks hand their whole vector to a partner first.\n"
            "Next step: for long vectors use an algorithm that treats all ranks alike.",
        )
