"""What problem 03 asks for, as checks. Each docstring is what you read in the report."""

import numpy as np
import pytest

from grader.compare import expect_close, expect_equal, expect_ranks_agree, output
from grader.ended import Failed

MIB = 1 << 20
PRIME = 65_521
LINK_MBIT = 200
DELAY_S = 0.020
WENT_ROUND = "Data went round the network that is counted."

TYPES = (np.float32, np.float64, np.int64, np.float16)
OPERATIONS = {"SUM": np.add, "MAX": np.maximum, "PROD": np.multiply}


def make_input(rng, ranks, shape, dtype=np.float64, op="SUM"):
    """One vector per rank, of whole numbers small enough that every order gives the same bits."""
    if op == "compose":
        maps = [rng.integers(1, PRIME, (2, *np.atleast_1d(shape))) for _ in range(ranks)]
        return [{"sendbuf": (a << 16) + b} for a, b in maps]
    low, high = {"PROD": (1, 3)}.get(op, (-100, 100))
    if op == "PROD" and np.dtype(dtype) == np.float16:
        low, high = 1, 2.99
    vectors = [rng.integers(low, int(high), shape).astype(dtype) for _ in range(ranks)]
    if op == "PROD":
        vectors = [v * rng.choice([-1, 1], shape).astype(dtype) for v in vectors]
    return [{"sendbuf": np.asarray(v, dtype)} for v in vectors]


def make_dense_input(rng, ranks, size):
    """`size` bytes per rank of which none can be spared: what is counted must have travelled.

    Whole numbers over the full range of int64. Their sum wraps round alike in every order.
    """
    draw = rng.integers
    whole = np.iinfo(np.int64)
    return [
        {"sendbuf": draw(whole.min, whole.max, size // 8, np.int64, endpoint=True)}
        for _ in range(ranks)
    ]


def expected(inputs, op="SUM"):
    vectors = [rank["sendbuf"] for rank in inputs]
    result = vectors[0].copy()
    for vector in vectors[1:]:
        if op == "compose":
            a1, b1, a2, b2 = result >> 16, result & 0xFFFF, vector >> 16, vector & 0xFFFF
            result = (a1 * a2 % PRIME << 16) + (a1 * b2 + b1) % PRIME
        else:
            result = OPERATIONS[op.removeprefix("slow ")](result, vector)
    return result


def lengths(ranks):
    """Around the rank count, and one that is long without a message beyond the eager limit."""
    short = (0, 1, ranks - 1, ranks, ranks + 1, 1009)
    return [(length, np.float64) for length in short] + [(20_011, np.float32)]


def run_and_compare(job, inputs, op="SUM", cause="", next_step="", timeout_s=None, **params):
    """One case: every rank must hold what one process would have computed."""
    run = job.run(inputs, {"op": op, **params}, timeout_s=timeout_s)
    want = expected(inputs, op)
    length, dtype = want.size, want.dtype
    for rank, outputs in enumerate(run.outputs):
        where = f"on rank {rank} of {len(inputs)} ({dtype}, length {length:,}, {op})"
        got = output(outputs, "recvbuf", rank)
        expect_equal(got, want, where=where, cause=cause, next_step=next_step)
    return run


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=4, slots=1)
def test_sum_on_four_ranks(cluster, rng):
    """Four ranks add up their vectors, and each gets the sum.

    The smallest complete case: 1,000 numbers, four hosts, one rank on each.
    """
    with cluster.job(4, "four ranks") as job:
        run_and_compare(
            job,
            make_input(rng, 4, 1000),
            cause="a round too few, or a chunk that is sent before it is complete.",
            next_step="print which chunk each rank sends in each round for n = 4; follow one.",
        )


@pytest.mark.points(8)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_every_rank_count_and_length(cluster, rng):
    """It works for 1 to 12 ranks, primes included, and for every length from 0 up.

    Lengths that n does not divide, shorter than n, and empty ones are where index arithmetic fails.
    """
    with cluster.job(12, "1 to 12 ranks") as job:
        for ranks in range(1, 13):
            for length, dtype in lengths(ranks):
                run_and_compare(
                    job,
                    make_input(rng, ranks, length, dtype),
                    cause="remainder elements dropped when n does not divide the length, or a rank "
                    "count that is no power of two.",
                    next_step="split with numpy.array_split, and try n = 3 with length 2 by hand.",
                )


@pytest.mark.points(8)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_every_type_and_operation(cluster, rng):
    """float32, float64, int64 and float16 work with SUM, MAX and PROD, and an operation of the
    user's own is applied in rank order.

    The user's operation composes maps: associative, so you may bracket as you like, but not
    commutative, so x0 op x1 is not x1 op x0.
    """
    with cluster.job(6, "types and operations") as job:
        for dtype in TYPES:
            for op in OPERATIONS:
                for length in (5, 25_000):
                    run_and_compare(job, make_input(rng, 4, length, dtype, op), op)
        for ranks in (2, 3, 4, 5, 6):
            for length in (7, 25_000):
                run_and_compare(
                    job,
                    make_input(rng, ranks, length, op="compose"),
                    "compose",
                    cause="operands combined as they arrive, which only a commutative operation "
                    "allows.",
                    next_step="ask op.Is_commutative(), and keep the lower ranks' share on the "
                    "left: op.Reduce_local(left, right) leaves left op right in right.",
                )


@pytest.mark.points(4)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_input_is_left_alone(cluster, rng):
    """The send buffer is the same after the call as before it."""
    with cluster.job(4, "input kept") as job:
        for length in (10, 25_000):
            inputs = make_input(rng, 4, length)
            run = job.run(inputs, {"mode": "keep input"})
            for rank, outputs in enumerate(run.outputs):
                expect_equal(
                    output(outputs, "sendbuf", rank),
                    inputs[rank]["sendbuf"],
                    where=f"in sendbuf of rank {rank} after the call, length {length:,}",
                    cause="partial sums added into sendbuf instead of recvbuf.",
                    next_step="copy sendbuf into recvbuf once, and work there.",
                )


@pytest.mark.points(4)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_in_place(cluster, rng):
    """With MPI.IN_PLACE as sendbuf, the receive buffer is input and output."""
    with cluster.job(4, "in place") as job:
        for length in (10, 25_000):
            run_and_compare(
                job,
                make_input(rng, 4, length),
                mode="in place",
                cause="sendbuf is copied over recvbuf without asking whether it is MPI.IN_PLACE.",
            )


@pytest.mark.points(4)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_bad_buffers_are_refused(cluster):
    """Buffers with gaps, of different size or of different type raise ValueError on every rank.

    Raised before anything is sent: a rank that fails halfway leaves the others waiting.
    """
    with cluster.job(4, "bad buffers") as job:
        for mode in ("sendbuf has gaps", "recvbuf has gaps", "sizes differ", "types differ"):
            run = job.run([{} for _ in range(4)], {"mode": f"bad: {mode}"}, output_bytes=8192)
            for rank, outputs in enumerate(run.outputs):
                words = [str(word) for word in output(outputs, "raised", rank).ravel()]
                kind, text = [*words, "", ""][:2]
                if kind != "ValueError" or len(text) < 10:
                    raise Failed(
                        f"expected ValueError with a sentence when {mode}, got {kind} {text!r} on "
                        f"rank {rank}.\nNext step: check flags.c_contiguous, size and dtype first."
                    )


@pytest.mark.points(6)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_ranks_agree_to_the_last_bit(cluster, rng):
    """All ranks hold bit-identical results, for fractions too.

    Parameters that differ in the last bit drift apart within a few thousand steps.
    """
    with cluster.job(7, "bits") as job:
        for ranks in (3, 4, 7):
            for length in (3, 1001, 100_003):
                inputs = [
                    {"sendbuf": rng.normal(size=length).astype(np.float32)} for _ in range(ranks)
                ]
                run = job.run(inputs)
                where = f"{ranks} ranks, length {length:,}"
                results = [output(outputs, "recvbuf", r) for r, outputs in enumerate(run.outputs)]
                expect_ranks_agree(
                    results,
                    name="recvbuf",
                    where=where,
                    cause="each rank adds the same numbers in an order of its own; floating-point "
                    "addition is not associative.",
                    next_step="finish each element on one rank and pass it on, or let both "
                    "partners of an exchange add lower rank first.",
                )
                want = np.sum([i["sendbuf"].astype(np.float64) for i in inputs], axis=0)
                expect_close(results[0], want, relative=1e-5, where=where)


@pytest.mark.points(8)
@pytest.mark.needs("test_sum_on_four_ranks")
def test_no_deadlock_beyond_the_eager_limit(cluster, rng):
    """Messages too large to be buffered do not make the ranks wait for each other.

    MPI buffers small sends, so two ranks that both send first get away with it, up to a size.
    """
    with cluster.job(4, "8 B to 4 MiB") as job:
        for size in (8, 4096, 65_536, MIB, 4 * MIB):
            for ranks in (2, 3, 4):
                run_and_compare(job, make_input(rng, ranks, size // 8), timeout_s=6)


@pytest.mark.points(12)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.needs("test_no_deadlock_beyond_the_eager_limit")
def test_large_messages_use_the_bandwidth(cluster, rng, measure):
    """For 16 MiB, no host sends or receives more than 1.08 times the least possible.

    The least is 2(n-1)/n of the vector: 24 MiB for four ranks (Patarasuk and Yuan, 2009). It is
    counted on the hosts' interfaces, headers included.
    """
    with cluster.job(4, "16 MiB, counted") as job:
        run = run_and_compare(job, make_dense_input(rng, 4, 16 * MIB))
        bound = 2 * 3 / 4 * 16 * MIB
        measure.at_least(
            "bytes received by all hosts, against the least possible",
            sum(t.received_bytes for t in run.traffic) / (4 * bound),
            1.0,
            "x",
            else_=WENT_ROUND,
        )
        for direction in ("sent", "received"):
            counted = [getattr(t, f"{direction}_bytes") for t in run.traffic]
            worst = max(range(4), key=counted.__getitem__)
            measure.at_most(
                f"most bytes {direction} by a host, against the least possible",
                counted[worst] / bound,
                1.08,
                "x",
                else_=f"node{worst + 1} {direction} {counted[worst] / MIB:.1f} MiB where "
                f"{bound / MIB:.0f} MiB do. Usual cause: whole vectors travel, or one rank "
                "collects for all.\nNext step: let each rank finish 1/n of the vector, then pass "
                "it on.",
            )
        control = max(t.control_bytes for t in run.traffic)
        measure.at_most(
            "bytes on the launcher's network",
            control,
            MIB,
            "bytes",
            else_=WENT_ROUND,
        )


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_large_messages_use_the_bandwidth")
def test_large_messages_keep_the_links_busy(cluster, rng, measure):
    """On links of 200 Mbit/s, 16 MiB take at most 1.7 times the bound.

    The bound is the time that 2(n-1)/n of the vector take at the link's rate.
    """
    bound_s = 2 * 3 / 4 * 16 * MIB * 8 / (LINK_MBIT * 1e6)
    with cluster.job(4, "16 MiB at 200 Mbit/s") as job:
        job.run(make_input(rng, 4, MIB, np.float32))

        def once():
            return run_and_compare(job, make_dense_input(rng, 4, 16 * MIB)).elapsed_s / bound_s

        sample = measure.best_of(once, enough=1.7)
        measure.at_least("no faster than the links", sample.best, 0.95, "x", else_=WENT_ROUND)
        measure.at_most(
            "time against the bound",
            sample.best,
            1.7,
            "x",
            else_="Usual cause: half of each link is idle, because even ranks send first and odd "
            "ones receive first.\nNext step: post the receive (Irecv), start the send (Isend), and "
            "wait for both.",
        )


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_large_messages_keep_the_links_busy")
def test_the_links_work_while_a_rank_adds(cluster, rng, measure):
    """With an operation that takes 0.7 of the links' time, 8 MiB take at most 1.75 times the bound;
    3 times earns half.

    The bound is the links' time. One after the other the two take 2 in practice; a link must carry
    the next segment while the last one is being added.
    """
    bound_s = 2 * 3 / 4 * 8 * MIB * 8 / (LINK_MBIT * 1e6)
    with cluster.job(4, "a slow operation") as job:
        run_and_compare(job, make_input(rng, 4, 1000, np.int64), "slow SUM")

        def once():
            inputs = make_dense_input(rng, 4, 8 * MIB)
            return run_and_compare(job, inputs, "slow SUM").elapsed_s / bound_s

        sample = measure.best_of(once, enough=1.75)
        measure.at_least("no faster than the links", sample.best, 0.95, "x", else_=WENT_ROUND)
        measure.banded(
            "time with a slow operation, against the links' alone",
            sample.best,
            full=1.75,
            passing=3,
            unit="x",
            else_="Usual cause: a link idles while a rank adds, or waits for a whole chunk.\n"
            "Next step: cut each chunk into segments, post receives ahead, and send a segment as "
            "soon as it is added.",
        )


@pytest.mark.points(10)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.fault("delay 20ms on all")
@pytest.mark.needs("test_sum_on_four_ranks")
def test_small_messages_take_log_n_rounds(cluster, rng, measure):
    """With 20 ms on every link, 8 bytes over four ranks take at most 3.5 one-way delays.

    ceil(log2 4) = 2 rounds are needed; 1.5 delays are left for everything else. A ring needs 6.
    """
    with cluster.job(4, "8 bytes at 20 ms") as job:
        run_and_compare(job, make_input(rng, 4, 1))

        def once():
            return run_and_compare(job, make_input(rng, 4, 1)).elapsed_s / DELAY_S

        sample = measure.best_of(once, enough=3.5, most=15)
        measure.at_least("no faster than the links", sample.best, 1.0, "delays", else_=WENT_ROUND)
        measure.at_most(
            "time in one-way delays",
            sample.best,
            3.5,
            "delays",
            else_="Usual cause: a ring, or a reduction to one rank and a broadcast, for a message "
            "this short.\nNext step: exchange whole vectors with rank XOR 1, then rank XOR 2.",
        )


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_large_messages_use_the_bandwidth")
def test_a_partition_that_heals_changes_nothing(cluster, rng, measure):
    """Cut in two for a second in mid-transfer, the job goes on and the sum is right.

    TCP resends what the partition swallowed. Your code must not have given up by then.
    """
    with cluster.job(4, "partition") as job:
        job.run(make_input(rng, 4, 1000))
        cut = cluster.timeline("from 0.2s to 1.2s partition {node1,node2} | {node3,node4}")
        inputs = make_input(rng, 4, 2 * MIB, np.float32)
        run = job.run(inputs, {"op": "SUM"}, during=cut)
        for rank, outputs in enumerate(run.outputs):
            got = output(outputs, "recvbuf", rank)
            expect_equal(got, expected(inputs), where=f"on rank {rank} after the partition")
        cut.must_have_fired()  # after the sums: who gives up ends before the partition does
        measure.note("time with the partition", run.elapsed_s, "s")
