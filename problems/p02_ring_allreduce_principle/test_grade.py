"""What is judged, as prose: each check's docstring is what a learner reads in the report."""

import math

import numpy as np
import pytest

from grader.compare import expect_equal, explain, output
from grader.ended import Failed

MIB = 1 << 20
LINK_MBIT = 200
WENT_ROUND = "Data went round the network that is counted."
REDUCE = 0
MOST_MOVES = 2_200_000
ALGORITHMS = ("ring", "tree", "recursive doubling", "rabenseifner")


# The schedule: read it, play it on sets of ranks, look at its links.


def rounds_of(job, n, timeout_s=None):
    """The rounds of ring_schedule(n), each an array of moves (src, dst, chunk, 0 reduce | 1 copy).

    It came from a rank: nothing in it is taken for granted.
    """
    question = {"part": "schedule", "n": n}
    answer = job.run([{}], question, timeout_s=timeout_s, output_bytes=8 * MOST_MOVES).outputs[0]
    trouble = str(output(answer, "trouble", 0))
    if trouble:
        raise Failed(
            f"{trouble}.\nNext step: return rounds, each a list of (src, dst, chunk, kind), kind "
            "being 'reduce' or 'copy'."
        )
    moves, lengths = output(answer, "moves", 0), output(answer, "rounds", 0)
    fits = moves.ndim == 2 and moves.shape[1] == 4 and moves.dtype.kind == "i"
    fits = fits and lengths.ndim == 1 and lengths.dtype.kind == "i" and bool((lengths >= 0).all())
    fits = fits and int(lengths.sum()) == len(moves)
    if not fits or ((moves < 0) | (moves >= [n, n, n, 2])).any():
        raise Failed(f"ring_schedule({n}) was handed in as arrays that do not fit together")
    return np.split(moves, np.cumsum(lengths)[:-1]) if len(lengths) else []


def play(n, rounds):
    """Play the rounds on sets: bit r of holds[rank, chunk] says that rank r's share is in there."""
    ranks = np.arange(n)
    bit = np.left_shift(np.uint64(1), (ranks % 64).astype(np.uint64))
    holds = np.zeros((n, n, -(-n // 64)), np.uint64)
    holds[ranks, :, ranks // 64] = bit[:, None]
    everything = np.bitwise_or.reduce(holds[:, 0])
    for number, moves in enumerate(rounds):
        src, dst, chunk, kind = moves.T.astype(np.intp)
        sent, held = holds[src, chunk], holds[dst, chunk]  # copies: a round happens at once
        adding = kind == REDUCE
        expect_no_double(n, number, moves, adding & (sent & held).any(axis=1))
        holds[dst, chunk] = np.where(adding[:, None], sent | held, sent)
    expect_complete(n, holds, everything)


def expect_no_double(n, number, moves, counted_twice):
    """No contribution added twice, no chunk written twice in one round."""
    if counted_twice.any():
        src, dst, chunk, _ = moves[int(np.argmax(counted_twice))]
        raise Failed(
            f"n = {n}, round {number}: rank {src} sends chunk {chunk} to rank {dst}, which adds "
            "what it holds already: a contribution is counted twice.\nUsual cause: the chunk does "
            "not rotate; what was sent in one round must not be sent again in the next."
            "\nNext step: write down for n = 4 which chunk rank 0 sends in rounds 0, 1 and 2."
        )
    target = moves[:, 1].astype(np.intp) * n + moves[:, 2]
    if len(np.unique(target)) < len(target):
        raise Failed(
            f"n = {n}, round {number}: two moves write the same chunk of the same rank at once.\n"
            "Next step: a rank of a ring receives one chunk a round, from its predecessor."
        )


def expect_complete(n, holds, everything):
    wrong = (holds != everything).any(axis=2)
    if not wrong.any():
        return
    rank, chunk = (int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    there = [r for r in range(n) if int(holds[rank, chunk, r // 64]) >> (r % 64) & 1]
    missing = [r for r in range(n) if r not in there]
    raise Failed(
        explain(
            f"the shares of all {n} ranks",
            f"those of {there[:8]}{' and more' if len(there) > 8 else ''}; it misses rank "
            f"{missing[0]}'s",
            f"n = {n}: chunk {chunk} on rank {rank} after the last round ({int(wrong.sum())} of "
            f"{n * n} chunks are incomplete)",
            "the second half hands out a chunk that is not finished, one place off; or it lasts a "
            "round too few.",
            "after n-1 rounds each rank holds one finished chunk. Which? That one goes out first.",
        )
    )


def expect_one_ring(n, rounds):
    """2(n-1) rounds, in each of which every rank sends one chunk to the same successor."""
    if len(rounds) != 2 * (n - 1):
        raise Failed(
            f"n = {n}: expected 2(n-1) = {2 * (n - 1)} rounds, got {len(rounds)}.\nNext step: n-1 "
            "rounds complete each chunk somewhere, n-1 more take it everywhere."
        )
    successor = None
    for number, moves in enumerate(rounds):
        src, dst = moves[:, 0].astype(np.intp), moves[:, 1].astype(np.intp)
        expect_one_chunk_a_link(n, number, src, dst)
        to = np.empty(n, np.intp)
        to[src] = dst
        if successor is None:
            expect_one_cycle(n, to)
            successor = to
        elif (to != successor).any():
            rank = int(np.argmax(to != successor))
            raise Failed(
                f"n = {n}: rank {rank} sends to rank {successor[rank]} in round 0 and to rank "
                f"{to[rank]} in round {number}; in a ring it always has the same successor."
            )


def expect_one_chunk_a_link(n, number, src, dst):
    links, carried = np.unique(src * n + dst, return_counts=True)
    if len(links) and carried.max() > 1:
        a, b = divmod(int(links[carried.argmax()]), n)
        raise Failed(
            f"n = {n}, round {number}: expected 1 chunk on the link {a} -> {b}, got "
            f"{carried.max()}.\nUsual cause: whole vectors travel, so a link carries O(n) "
            "times the data and the others rest.\nNext step: let every rank send 1/n of the "
            "vector at once."
        )
    for what, ends in (("sends", src), ("receives", dst)):
        idle = np.setdiff1d(np.arange(n), ends)
        if len(idle) or len(ends) != n:
            who = f"rank {idle[0]} {what} nothing" if len(idle) else f"a rank {what} twice"
            raise Failed(f"n = {n}, round {number}: {who}; all n links work in every round.")


def expect_one_cycle(n, to):
    place, length = int(to[0]), 1
    while place and length < n:
        place, length = int(to[place]), length + 1
    if place or length < n:
        raise Failed(
            f"n = {n}: from rank 0 the links lead back to it after {length} of {n} ranks; the "
            "ranks must form one ring."
        )


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=1, slots=1)
def test_schedule_of_four_ranks(cluster):
    """The schedule for four ranks leaves every rank with every contribution, once.

    It is played on sets instead of numbers: what is lost shows, and so does what is added twice.
    """
    with cluster.job(1, "schedule, n = 4") as job:
        play(4, rounds_of(job, 4))


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=1, slots=1)
@pytest.mark.needs("test_schedule_of_four_ranks")
def test_schedule_of_every_rank_count(cluster):
    """For every n from 1 to 64 each chunk is complete everywhere, each contribution counted once.

    n = 1 has no rounds. Most n are no power of two, and many are primes.
    """
    with cluster.job(1, "schedules, n = 1 to 64") as job:
        for n in range(1, 65):
            play(n, rounds_of(job, n))


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=1, slots=1)
@pytest.mark.needs("test_schedule_of_four_ranks")
def test_every_link_carries_one_chunk_a_round(cluster, measure):
    """There are 2(n-1) rounds, and in each all n links of one ring carry one chunk.

    So a link carries 2(n-1)/n of the vector altogether: less than two vectors, however many ranks.
    """
    with cluster.job(1, "links, n = 1 to 64") as job:
        for n in (4, *range(1, 65)):
            rounds = rounds_of(job, n)
            expect_one_ring(n, rounds)
        measure.note("chunks that a link carries, n = 64", len(rounds), "chunks")


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=1, slots=1)
@pytest.mark.needs("test_schedule_of_every_rank_count", "test_every_link_carries_one_chunk_a_round")
def test_schedule_of_1024_ranks(cluster, measure):
    """A thousand ranks: 2,046 rounds and 2,095,104 moves, right to the last, within 15 seconds."""
    with cluster.job(1, "schedule, n = 1,024") as job:
        rounds = rounds_of(job, 1024, timeout_s=15)
        measure.note("moves", sum(map(len, rounds)), "moves")
        expect_one_ring(1024, rounds)
        play(1024, rounds)


# The price: played message by message, on ranks that have a clock each. No formula.


def ring(n, size):
    return [[(r, (r + 1) % n, size / n) for r in range(n)] for _ in range(2 * n - 2)]


def tree(n, size):
    gaps = [1 << k for k in range((n - 1).bit_length())]
    up = [[(r, r - gap, size) for r in range(gap, n, 2 * gap)] for gap in gaps]
    return up + backwards(up)


def doubling(n, size):
    p = 1 << n.bit_length() - 1
    core = [[(r, r ^ 1 << k, size) for r in range(p)] for k in range(p.bit_length() - 1)]
    return with_surplus_aside(n, p, size, core)


def halving_and_doubling(n, size):
    p = 1 << n.bit_length() - 1
    gaps = [p >> k for k in range(1, p.bit_length())]
    halving = [[(r, r ^ gap, size * gap / p) for r in range(p)] for gap in gaps]
    return with_surplus_aside(n, p, size, halving + backwards(halving))


def with_surplus_aside(n, p, size, core):
    aside = [[(r, r - p, size) for r in range(p, n)]]
    return aside + core + backwards(aside)


def backwards(steps):
    return [[(dst, src, size) for src, dst, size in step] for step in reversed(steps)]


STEPS = dict(zip(ALGORITHMS, (ring, tree, doubling, halving_and_doubling), strict=True))


def simulated_seconds(n, size, alpha, beta, algorithm):
    """When the last rank is done. A message begins when both its ends are free."""
    clock = [0.0] * n
    for messages in STEPS[algorithm](n, size):
        begun = list(clock)
        for src, dst, carried in messages:
            ends = max(begun[src], begun[dst]) + alpha + carried * beta
            clock[src], clock[dst] = max(clock[src], ends), max(clock[dst], ends)
    return max(clock)


def drawn_link(rng):
    """alpha from a microsecond to a tenth of a second, beta from 1 Gbit/s x 100 to 8 Mbit/s."""
    return 10 ** rng.uniform(-6, -1), 10 ** rng.uniform(-11, -6)


def expect_costs(job, rng, counts):
    questions = [(n, int(10 ** rng.uniform(2, 9)), *drawn_link(rng)) for n in counts]
    questions.append((counts[-1], 0, *drawn_link(rng)))
    given = {"questions": np.array(questions, np.float64)}
    run = job.run([given], {"part": "cost", "algorithms": ALGORITHMS})
    seconds = output(run.outputs[0], "seconds", 0)
    expect_shape(seconds, (len(questions), len(ALGORITHMS)))
    for (n, size, alpha, beta), answers in zip(questions, seconds, strict=True):
        for algorithm, got in zip(ALGORITHMS, answers, strict=True):
            want = simulated_seconds(n, size, alpha, beta, algorithm)
            if not abs(got - want) <= 1e-9 * want:
                raise Failed(
                    explain(
                        f"{want:.9g} s",
                        f"{got:.9g} s",
                        f'cost({n}, {size}, {alpha:.6g}, {beta:.6g}, "{algorithm}"): its messages '
                        "were played one by one on ranks with a clock each",
                        "the whole vector counted where a part travels, log2(n) not rounded, or "
                        "the two extra rounds left out when n is no power of two.",
                        "set beta to 0 and count rounds, then alpha to 0 and count bytes.",
                    )
                )


def expect_shape(array, shape):
    if array.shape != shape or array.dtype != np.float64:
        raise Failed(f"rank 0 handed in {array.dtype} of shape {array.shape}, not {shape}")


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=1, slots=1)
def test_costs_for_powers_of_two(cluster, rng):
    """The price of all four algorithms is right for 2 to 64 ranks, powers of two.

    alpha, beta and sizes are drawn. So that no formula is compared with itself, the grader plays
    the messages.
    """
    with cluster.job(1, "costs, powers of two") as job:
        expect_costs(job, rng, [2, 4, 8, 16, 32, 64])


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=1, slots=1)
@pytest.mark.needs("test_costs_for_powers_of_two")
def test_costs_for_every_rank_count(cluster, rng):
    """The price is right for rank counts that are no power of two, and 0 for one rank."""
    with cluster.job(1, "costs, any n") as job:
        drawn = [int(n) for n in rng.integers(9, 90, 6)]
        expect_costs(job, rng, [1, 3, 5, 6, 7, 31, 33, 63, *drawn])


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=1, slots=1)
def test_crossover_is_where_the_two_tie(cluster, rng):
    """At the size that crossover gives, ring and recursive doubling take the same time.

    Both are played at that size. One rank: 0. Two ranks: never, math.inf.
    """
    counts = [4, 8, 64, 3, 5, 6, 7, 17, 33, *(int(n) for n in rng.integers(9, 64, 4)), 1, 2]
    questions = [(n, *drawn_link(rng)) for n in counts]
    with cluster.job(1, "crossover") as job:
        given = {"questions": np.array(questions, np.float64)}
        run = job.run([given], {"part": "crossover"})
    sizes = output(run.outputs[0], "sizes", 0)
    expect_shape(sizes, (len(questions),))
    for (n, alpha, beta), size in zip(questions, sizes, strict=True):
        call = f"crossover({n}, {alpha:.6g}, {beta:.6g})"
        if n <= 2:
            if size != (0.0, math.inf)[n - 1]:
                raise Failed(f"{call}: expected {(0.0, math.inf)[n - 1]}, got {size:.9g}.")
            continue
        times = [simulated_seconds(n, size, alpha, beta, a) for a in (ALGORITHMS[0], ALGORITHMS[2])]
        if not abs(times[0] - times[1]) <= 1e-6 * times[0]:
            raise Failed(
                f"{call} is {size:.9g} bytes: expected a tie there, got {times[0]:.6g} s for the "
                f"ring and {times[1]:.6g} s for recursive doubling.\nUsual cause: log2(n) where n "
                "is no power of two.\nNext step: set your two costs equal and solve for the size."
            )


# The repair, on hosts.


def make_input(rng, ranks, shape, dtype=np.float64):
    """One tensor a rank, of whole numbers small enough that every order gives the same bits."""
    return [{"x": rng.integers(-999, 999, shape).astype(dtype)} for _ in range(ranks)]


def make_dense_input(rng, ranks, length):
    """int64 over the full range: no byte can be spared, and the sum wraps alike in every order."""
    whole = np.iinfo(np.int64)
    draw = rng.integers
    return [
        {"x": draw(whole.min, whole.max, length, np.int64, endpoint=True)} for _ in range(ranks)
    ]


def run_and_compare(job, inputs, cause="", next_step="", **how):
    """One case: every rank must hold the sum."""
    run = job.run(inputs, {"part": "all_reduce"}, **how)
    want = inputs[0]["x"].copy()
    for rank in inputs[1:]:
        want += rank["x"]
    for rank, outputs in enumerate(run.outputs):
        where = f"on rank {rank} of {len(inputs)} ({want.dtype}, shape {want.shape})"
        got = output(outputs, "x", rank)
        expect_equal(got, want, where=where, cause=cause, next_step=next_step)
    return run


@pytest.mark.points(8)
def test_sum_on_four_hosts(cluster, rng):
    """The repaired snippet adds up 1,000 numbers on four hosts.

    Four divides 1,000, and the messages are of 2 kB: the remainder and long messages come later.
    """
    with cluster.job(4, "four hosts") as job:
        run_and_compare(
            job,
            make_input(rng, 4, 1000),
            cause="the chunk that is sent does not rotate, or the second half is one place off.",
            next_step="let ring_all_reduce do what your ring_schedule(4) says, move by move.",
        )


@pytest.mark.points(8)
@pytest.mark.needs("test_sum_on_four_hosts")
def test_every_length_and_rank_count(cluster, rng):
    """It works on 1, 2, 3 and 4 hosts, for lengths that n does not divide, below n, and 0.

    For float32, float64 and int64, and for tensors of two dimensions.
    """
    with cluster.job(4, "1 to 4 hosts") as job:
        for ranks in (1, 2, 3, 4):
            for shape in (ranks, ranks + 1, ranks - 1, 1, 0, 1009, (7, 143)):
                for dtype in (np.float64, np.float32, np.int64)[: 1 if shape != 1009 else 3]:
                    run_and_compare(
                        job,
                        make_input(rng, ranks, shape, dtype),
                        cause="length // n elements in every chunk: the remainder is dropped.",
                        next_step="cut with torch.tensor_split, and try n = 3, length 4 by hand.",
                    )


@pytest.mark.points(6)
@pytest.mark.needs("test_sum_on_four_hosts")
def test_messages_of_a_megabyte_do_not_deadlock(cluster, rng):
    """Messages from 16 KiB to 4 MiB arrive, on 4 and on 2 hosts: nobody waits in a circle."""
    with cluster.job(4, "64 KiB to 8 MiB") as job:
        for ranks in (4, 2):
            for size in (MIB // 16, MIB, 4 * MIB, 8 * MIB):
                run_and_compare(job, make_input(rng, ranks, size // 8), timeout_s=4)


@pytest.mark.points(8)
@pytest.mark.needs("test_messages_of_a_megabyte_do_not_deadlock")
def test_no_host_sends_more_than_its_share(cluster, rng, measure):
    """For 16 MiB, no host sends or receives more than 1.08 times 2(n-1)/n of the tensor.

    Counted on the hosts' interfaces, headers included, on 4 and on 3 hosts. n does not divide the
    length.
    """
    with cluster.job(4, "16 MiB, counted") as job:
        for ranks in (4, 3):
            length = 2 * MIB + 5
            run = run_and_compare(job, make_dense_input(rng, ranks, length))
            least = 2 * (ranks - 1) / ranks * length * 8
            for direction in ("sent", "received"):
                counted = [getattr(t, f"{direction}_bytes") for t in run.traffic[:ranks]]
                worst = int(np.argmax(counted))
                measure.at_least(
                    f"bytes {direction} by all {ranks} hosts, against the least possible",
                    sum(counted) / (ranks * least),
                    1.0,
                    "x",
                    else_=WENT_ROUND,
                )
                measure.at_most(
                    f"most bytes {direction} by one of {ranks} hosts, against the least possible",
                    counted[worst] / least,
                    1.08,
                    "x",
                    else_=f"node{worst + 1} {direction} {counted[worst] / MIB:.1f} MiB where "
                    f"{least / MIB:.1f} MiB do. Usual cause: whole tensors travel round the ring, "
                    "or one rank collects for all.\nNext step: send one chunk, 1/n, a round.",
                )
            control = max(t.control_bytes for t in run.traffic)
            measure.at_most(
                "bytes on the launcher's network", control, MIB, "bytes", else_=WENT_ROUND
            )


@pytest.mark.points(5)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_no_host_sends_more_than_its_share")
def test_links_carry_both_directions_at_once(cluster, rng, measure):
    """On links of 200 Mbit/s, 8 MiB take at most 1.75 times as long as the least bytes need.

    A link carries 200 Mbit/s each way. Ranks that take turns, half sending while the others
    receive, do not deadlock either, and use half of it.
    """
    bound_s = 2 * 3 / 4 * 8 * MIB * 8 / (LINK_MBIT * 1e6)
    with cluster.job(4, "8 MiB at 200 Mbit/s") as job:
        run_and_compare(job, make_input(rng, 4, 1000))

        def once():
            return run_and_compare(job, make_dense_input(rng, 4, MIB)).elapsed_s / bound_s

        sample = measure.best_of(once, enough=1.75)
        measure.at_least("no faster than the links", sample.best, 0.95, "x", else_=WENT_ROUND)
        measure.at_most(
            "time against the bound",
            sample.best,
            1.75,
            "x",
            else_="Usual cause: even ranks send first and odd ones receive first.\nNext step: post "
            "the receive (irecv), start the send (isend), and wait for both.",
        )


@pytest.mark.points(5)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_messages_of_a_megabyte_do_not_deadlock")
def test_a_partition_that_heals_changes_nothing(cluster, rng, measure):
    """Cut in two for half a second in mid-transfer, the job goes on and the sum is right.

    TCP resends what the partition swallowed. Your code must not have given up by then.
    """
    with cluster.job(4, "partition") as job:
        run_and_compare(job, make_input(rng, 4, 1000))
        # 8 MiB need 0.5 s at least: the cut comes while they are on their way, and nobody can be
        # done before it heals.
        cut = cluster.timeline("from 0.2s to 0.7s partition {node1,node2} | {node3,node4}")
        run = run_and_compare(job, make_dense_input(rng, 4, MIB), during=cut, timeout_s=12)
        cut.must_have_fired()  # after the sums: who gives up ends before the partition does
        measure.note("time with the partition", run.elapsed_s, "s")
