"""What problem 04 asks for, as checks. Each docstring is what you read in the report."""

import json

import model
import numpy as np
import pytest

from grader.auc import auc
from grader.compare import expect_close, expect_equal, expect_ranks_agree, output
from grader.datasets.clicks import movielens
from grader.ended import Failed

RANKS = 4
LARGE = 1 << 20  # values; headers are small against them
LINK_MBIT = 25
LONG_S = 25  # for hundreds of steps on a busy machine
WENT_ROUND = "Data went round the network that is counted."
SHAPES = [[13, 5], [], [0], [3], [64], [7, 2, 3]]  # without dimensions, empty, below n
OPTIMIZER = {"lr": 0.05, "warmup_steps": 3, "betas": [0.9, 0.99], "eps": 1e-8}


# What one process computes


def pieces(flat, shapes):
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
    return np.split(flat, np.cumsum(sizes)[:-1])


def compress(x):
    """The scale with the sign of each value: what one bit a value and one float can say."""
    if not x.size:
        return x
    return np.where(x >= 0, 1.0, -1.0) * np.mean(np.abs(x))


class Twin:
    """OneBitAdam of stub.py in numpy and float64, all ranks in one process.

    clearance: how near to zero, against its scale, a value came whose sign was taken. Below some
    1e-5, float32 may see the other sign: such inputs are drawn again.
    """

    def __init__(self, start, shapes, ranks, lr, warmup_steps, betas, eps):
        self.x, self.ranks, self.lr = start.astype(float), ranks, lr
        self.warmup_steps, self.betas, self.eps = warmup_steps, betas, eps
        lengths = [len(c) for p in pieces(start, shapes) for c in np.array_split(p, ranks)]
        self.cuts = np.cumsum(lengths)[:-1]
        self.steps, self.clearance = 0, np.inf
        self.m, self.v = np.zeros_like(self.x), np.zeros_like(self.x)
        self.worker_errors = np.zeros((ranks, len(self.x)))
        self.server_error = np.zeros_like(self.x)

    def step(self, gradients):
        """gradients: one row for each rank."""
        self.steps += 1
        b1, b2 = self.betas
        if self.steps <= self.warmup_steps:
            mean = np.mean(gradients, axis=0, dtype=float)
            self.m = b1 * self.m + (1 - b1) * mean
            self.v = b2 * self.v + (1 - b2) * mean**2
        else:
            wanted = b1 * self.m + (1 - b1) * gradients.astype(float) + self.worker_errors
            sent = np.stack([self.compressed(row) for row in wanted])
            self.worker_errors = wanted - sent
            wanted = sent.mean(axis=0) + self.server_error
            self.m = self.compressed(wanted)
            self.server_error = wanted - self.m
        mean = self.m / (1 - b1**self.steps)
        variance = self.v / (1 - b2 ** min(self.steps, self.warmup_steps))
        self.x -= np.where(self.v > 0, self.lr * mean / (np.sqrt(variance) + self.eps), 0)
        return self.x.copy()

    def compressed(self, x):
        chunks = [c for c in np.split(x, self.cuts) if c.size]
        for chunk in chunks:
            scale, sizes = np.mean(np.abs(chunk)), np.abs(chunk[chunk != 0])
            if sizes.size:
                self.clearance = min(self.clearance, sizes.min() / scale)
        return np.concatenate([compress(chunk) for chunk in chunks])


def make_gradients(rng, ranks, steps, shapes, optimizer=OPTIMIZER, still=(), without=None):
    """Inputs for `ranks` ranks and the parameters after each step, drawn until every sign is
    clear. still: elements that have no gradient until warm-up has ended. without: (rank, elements)
    that have none at all."""
    size = sum(int(np.prod(shape, dtype=int)) for shape in shapes)
    for _ in range(200):
        start = rng.normal(size=size).astype(np.float32)
        # Each tensor has a magnitude of its own, and ranks disagree.
        magnitude = [10.0 ** rng.uniform(-4, 2) * np.ones(len(p)) for p in pieces(start, shapes)]
        centre = rng.normal(size=size)
        gradients = rng.normal(size=(ranks, steps, size)) + centre
        gradients = (gradients * np.concatenate(magnitude)).astype(np.float32)
        gradients[:, : optimizer["warmup_steps"], list(still)] = 0
        if without:
            gradients[without[0], :, without[1]] = 0
        twin = Twin(start, shapes, ranks, **optimizer)
        want = np.stack([twin.step(gradients[:, step]) for step in range(steps)])
        if twin.clearance > 3e-5:
            break
    inputs = [{"start": start, "gradients": rank} for rank in gradients]
    return inputs, want


def run_adam(job, inputs, shapes, optimizer=OPTIMIZER, timeout_s=None, **params):
    params = {"mode": "adam", "shapes": shapes, "optimizer": optimizer, **params}
    return job.run(inputs, params, timeout_s=timeout_s)


def expect_steps(run, want, warmup_steps, **advice):
    """After every step every rank must hold what the twin holds."""
    for step, parameters in enumerate(want):
        for rank, outputs in enumerate(run.outputs):
            found = output(outputs, "parameters", rank)
            late = step >= warmup_steps
            expect_close(
                found[step] if found.shape == want.shape else found,
                parameters.astype(np.float32),
                relative=2e-5,
                where=f"in the parameters of rank {rank} of {len(run.outputs)} after "
                f"{'compressed' if late else 'warm-up'} step {step + 1}",
                **advice,
            )


# FP16


def average(job, tensors):
    """tensors[r]: the list of float32 arrays of rank r. Returns the run and the flat inputs."""
    shapes = [list(t.shape) for t in tensors[0]]
    flat = [np.concatenate([t.reshape(-1) for t in rank]) for rank in tensors]
    run = job.run([{"x": x} for x in flat], {"mode": "fp16", "shapes": shapes})
    return run, np.stack(flat), shapes


def expect_means(run, flat, shapes, what, **advice):
    """Each element within four roundings to float16 of the mean, the same bits on every rank."""
    exact = flat.astype(float)
    want, size = exact.mean(axis=0), np.abs(exact)
    largest = [p.max(initial=0) * np.ones(p.shape[1]) for p in np.split(size, cuts(shapes), axis=1)]
    room = size.mean(axis=0) / 512 + np.concatenate(largest) / 2**30
    means = [output(outputs, "mean", rank) for rank, outputs in enumerate(run.outputs)]
    for rank, got in enumerate(means):
        if got.shape != want.shape or got.dtype != np.float32:
            expect_equal(got, want.astype(np.float32), where=f"on rank {rank}, {what}")
        off = np.abs(got - want) / np.maximum(room, 1e-45)
        off = np.where(np.isfinite(off), off, np.inf)
        worst = int(np.argmax(off))
        if off[worst] > 1:
            raise Failed(
                f"expected {want[worst]:.6g} within {room[worst]:.2g}, got {got[worst]:.6g}, at "
                f"element [{worst}] on rank {rank} of {len(means)}, {what}.\n"
                f"Usual cause: {advice['cause']}\nNext step: {advice['next_step']}"
            )
    expect_ranks_agree(
        means,
        name="mean",
        where=what,
        cause="a rank keeps its own share as it was before rounding.",
        next_step="let one rank finish each element, and take what it sends, the sender too.",
    )


def cuts(shapes):
    return np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])[:-1]


@pytest.mark.points(6)
def test_fp16_means_on_four_ranks(cluster, rng):
    """Four ranks average gradients of ordinary size, to the four roundings that float16 costs.

    Several tensors in one call, one without dimensions and one empty among them; in place.
    """
    with cluster.job(RANKS, "ordinary gradients") as job:
        for ranks in (RANKS, 3, 1):
            shapes = [*SHAPES, [4000]]
            tensors = [
                [rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(ranks)
            ]
            expect_means(
                *average(job, tensors),
                f"tensors of shapes {shapes}",
                cause="bfloat16 or 8 bits instead of float16, or a sum instead of a mean.",
                next_step="round each value to float16 once before it is sent.",
            )


@pytest.mark.points(8)
@pytest.mark.needs("test_fp16_means_on_four_ranks")
def test_fp16_survives_large_and_tiny_gradients(cluster, rng):
    """Values near 60,000 on four ranks do not overflow in the sum, and tiny ones do not vanish.

    float16 ends at 65,504 and at 6e-8. Large and tiny tensors come in one call.
    """
    with cluster.job(RANKS, "large and tiny") as job:
        for magnitudes in ([6e4], [1e-9], [6e4, 1e-9], [1e-25, 3e9, 1.0, 1e25]):
            near = [rng.uniform(0.97, 1.03, (RANKS, 500)) * size for size in magnitudes]
            tensors = [[x[rank].astype(np.float32) for x in near] for rank in range(RANKS)]
            expect_means(
                *average(job, tensors),
                f"tensors of magnitudes {magnitudes}",
                cause="the sum of four values near 60,000 is above 65,504, the largest float16; or "
                "dividing before the sum rounds tiny values to zero.",
                next_step="agree on the largest magnitude of each tensor, and scale by a power of "
                "two so that n times as much fits.",
            )


def float32_bytes(values, ranks=RANKS):
    """The least that averaging float32 values costs a host (problem 03)."""
    return 2 * (ranks - 1) / ranks * 4 * values


def expect_bytes(measure, run, bound, what, else_):
    """No host may send or receive more than `bound` of what float32 takes."""
    least = float32_bytes(LARGE)
    both = {
        "sent": [t.sent_bytes for t in run.traffic],
        "received": [t.received_bytes for t in run.traffic],
    }
    for direction, counted in sorted(both.items(), key=lambda item: -max(item[1])):
        worst = int(np.argmax(counted))
        measure.at_most(
            f"most bytes {direction} by a host, {what}, against float32",
            counted[worst] / least,
            bound,
            "x",
            else_=f"node{worst + 1} {direction} {counted[worst]:,} bytes for {LARGE:,} values. "
            + else_,
        )
    return sum(t.received_bytes for t in run.traffic) / RANKS / least


@pytest.mark.points(6)
@pytest.mark.needs("test_fp16_means_on_four_ranks")
def test_fp16_halves_the_bytes(cluster, rng, measure):
    """For a million values, no host sends or receives more than 0.54 of what float32 takes.

    Counted on the hosts' interfaces; float32 takes at least 2(n-1)/n x 4 bytes a value.
    """
    with cluster.job(RANKS, "a million values") as job:
        tensors = [[rng.normal(size=LARGE).astype(np.float32)] for _ in range(RANKS)]
        run, flat, shapes = average(job, tensors)
        advice = {"cause": "see the check before.", "next_step": "try 1,000 values first."}
        expect_means(run, flat, shapes, "a million values", **advice)
        mean = expect_bytes(
            measure,
            run,
            0.54,
            "float16",
            "Usual cause: values are rounded to float16 and sent as float32, or everybody sends "
            "everything to everybody.\nNext step: hand a tensor of dtype float16 to the reduction.",
        )
        measure.at_least("received by a host, in the mean", mean, 0.49, "x", else_=WENT_ROUND)


# 1-bit Adam


@pytest.mark.points(8)
def test_warm_up_is_adam(cluster, rng):
    """For warmup_steps steps, parameters move exactly as under Adam on the mean gradient."""
    optimizer = {**OPTIMIZER, "warmup_steps": 6}
    with cluster.job(RANKS, "warm-up") as job:
        for ranks in (RANKS, 3):
            inputs, want = make_gradients(rng, ranks, 6, SHAPES, optimizer)
            expect_steps(
                run_adam(job, inputs, SHAPES, optimizer),
                want,
                6,
                cause="no bias correction, or a sum of gradients instead of their mean.",
                next_step="divide m by 1 - b1^t and v by 1 - b2^t, where t is 1 in the first step.",
            )


@pytest.mark.points(12)
@pytest.mark.needs("test_warm_up_is_adam")
def test_compressed_steps_follow_the_definition(cluster, rng):
    """After warm-up, every step on every rank is the one that the definition gives.

    Six compressed steps on 125 values in six tensors of different magnitude; gradients differ from
    rank to rank.
    """
    with cluster.job(RANKS, "compressed steps") as job:
        for ranks in (RANKS, 2):
            inputs, want = make_gradients(rng, ranks, 9, SHAPES)
            expect_steps(
                run_adam(job, inputs, SHAPES),
                want,
                OPTIMIZER["warmup_steps"],
                cause="if the first compressed step is wrong: the scale, what is cut into chunks, "
                "or the momentum that is compressed. If the second: an error is not kept for every "
                "element, or not added, on worker or server, or the variance still moves.",
                next_step="print u, c and e on rank 0 for one tensor of 8 values, and do the same "
                "by hand.",
            )


@pytest.mark.points(8)
@pytest.mark.needs("test_warm_up_is_adam")
def test_what_a_sign_cannot_say_is_said_later(cluster, rng, measure):
    """Where ranks disagree, parameters still settle at the mean of what the ranks want.

    Three ranks want a little less than 0, one wants much more. A vote by sign goes to the
    three; what it loses has to be carried over to the next step.
    """
    size, steps, last = 256, 150, 50
    favourite = rng.integers(0, RANKS, size)
    wanted = rng.uniform(-1.2, -0.8, (RANKS, size))
    wanted[favourite, np.arange(size)] = rng.uniform(4, 6, size)
    wanted = wanted.astype(np.float32)
    optimizer = {**OPTIMIZER, "lr": 0.05, "warmup_steps": 20}
    with cluster.job(RANKS, "ranks disagree") as job:
        params = {"mode": "quadratic", "optimizer": optimizer, "steps": steps, "last": last}
        run = job.run([{"wanted": row} for row in wanted], params, timeout_s=LONG_S)
    aim = wanted.mean(axis=0, dtype=float)
    for rank, outputs in enumerate(run.outputs):
        off = np.abs(output(outputs, "x", rank) - aim).mean() / np.abs(aim).mean()
        measure.at_most(
            f"distance from the mean of what ranks want, rank {rank}",
            off,
            0.15,
            "x",
            else_="Usual cause: what compression loses is dropped, on the worker or on the "
            "server.\nNext step: keep u - compress(u), element by element, and add it to the next "
            "u; the same for w on the server.",
        )


@pytest.mark.points(3)
@pytest.mark.needs("test_compressed_steps_follow_the_definition")
def test_values_without_variance_stay(cluster, rng):
    """A value that had no gradient in warm-up stays where it is, though others' scale reaches it.

    Its frozen variance is 0: dividing by eps alone would throw it a million times too far.
    """
    shapes = [[40], [6]]
    still = rng.permutation(46)[:9]
    with cluster.job(RANKS, "no gradient in warm-up") as job:
        inputs, want = make_gradients(rng, RANKS, 7, shapes, still=still)
        expect_steps(
            run_adam(job, inputs, shapes),
            want,
            OPTIMIZER["warmup_steps"],
            cause="the step is divided by sqrt(0) + eps.",
            next_step="subtract only where v > 0.",
        )


@pytest.mark.points(10)
@pytest.mark.needs("test_warm_up_is_adam")
def test_one_bit_a_value_travels(cluster, rng, measure):
    """After warm-up, no host sends or receives more than 1/24 of what float32 takes.

    Counted for a compressed step on a million values. A bit each way would be 1/32; the rest is for
    scales and headers.
    """
    shapes = [[LARGE - 1000], [10, 100]]
    gradients = rng.normal(size=(RANKS, 2, LARGE)).astype(np.float32)
    twin = Twin(np.zeros(LARGE, np.float32), shapes, RANKS, **{**OPTIMIZER, "warmup_steps": 1})
    with cluster.job(RANKS, "a million values") as job:
        start = [{"start": np.zeros(LARGE, np.float32), "gradients": g[:1]} for g in gradients]
        run_adam(job, start, shapes, {**OPTIMIZER, "warmup_steps": 1})
        run = run_adam(job, [{"gradients": g[1:]} for g in gradients], shapes)
    twin.step(gradients[:, 0])
    want = twin.step(gradients[:, 1])
    got = output(run.outputs[0], "parameters", 0).reshape(-1)
    near = np.abs(got - want) < 1e-4 * (1 + np.abs(want)) if got.shape == want.shape else [0.0]
    measure.at_least(
        "share of values that are right",
        np.mean(near),
        0.99,
        "",
        else_="Next step: try 100 values first.",
    )
    mean = expect_bytes(
        measure,
        run,
        1 / 24,
        "1 bit",
        "Usual cause: a byte for each sign, or one server for all chunks.\nNext step: pack eight "
        "signs into a byte, let rank j be the server of chunk j, and send chunk j to rank j only.",
    )
    measure.at_least("received by a host, in the mean", mean, 0.03, "x", else_=WENT_ROUND)


@pytest.mark.points(6)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_one_bit_a_value_travels")
def test_a_compressed_step_is_faster(cluster, rng, measure):
    """On links of 25 Mbit/s, a compressed step takes at most half the time of float32's bytes.

    A million float32 values take 2 s there; a bit each takes 0.06 s. The rest is yours:
    what packing costs must not eat up what it saves.
    """
    bound_s = float32_bytes(LARGE) * 8 / (LINK_MBIT * 1e6)
    optimizer = {**OPTIMIZER, "warmup_steps": 1}
    gradients = rng.normal(size=(RANKS, 1, LARGE)).astype(np.float32)
    with cluster.job(RANKS, f"at {LINK_MBIT} Mbit/s") as job:
        start = [{"start": np.zeros(LARGE, np.float32), "gradients": g} for g in gradients]
        warm = run_adam(job, start, [[LARGE]], optimizer)
        measure.note("a warm-up step, against the least time of float32", warm.elapsed_s / bound_s)

        def once():
            inputs = [{"gradients": g} for g in gradients]
            run = run_adam(job, inputs, [[LARGE]], optimizer, LONG_S, every=1009)
            return run.elapsed_s / bound_s

        sample = measure.best_of(once, enough=0.5, least=1, most=3)
        measure.at_least("no faster than the links", sample.best, 1 / 33, "x", else_=WENT_ROUND)
        measure.at_most(
            "time of a compressed step, against the least time of float32",
            sample.best,
            0.5,
            "x",
            else_="Usual cause: bits are packed in a loop of Python's.\nNext step: shift and OR "
            "whole arrays: every eighth element, eight times.",
        )


@pytest.mark.points(6)
@pytest.mark.needs("test_warm_up_is_adam")
def test_every_rank_holds_the_same_parameters(cluster, rng):
    """After every step, warm-up or compressed, all ranks hold the same bits.

    What differs in the last bit on one rank grows: the next gradients are taken elsewhere.
    """
    with cluster.job(RANKS, "bits") as job:
        for ranks in (2, 3, 4):
            inputs, _ = make_gradients(rng, ranks, 9, [[200], [5, 7]])
            run = run_adam(job, inputs, [[200], [5, 7]])
            found = [output(o, "parameters", rank) for rank, o in enumerate(run.outputs)]
            expect_ranks_agree(
                found,
                name="parameters",
                where=f"step and element, {ranks} ranks",
                cause="each rank adds up in an order of its own, or a server uses its own chunk as "
                "it was before compression.",
                next_step="take every chunk from the message that all ranks get, the server too.",
            )


# Clicks


def make_clicks(rng, steps=120, batch=512):
    """For each rank its own part of MovieLens, cut into batches."""
    train = movielens().train
    parts = np.array_split(rng.permutation(len(train)), RANKS)
    rows = np.stack(
        [part[np.arange(steps * batch) % len(part)].reshape(steps, batch) for part in parts]
    )
    return [
        {"features": train.features[part].astype(np.int16), "clicked": train.clicked[part]}
        for part in rows
    ]


def train_uncompressed(inputs):
    """The weights that Adam reaches on float32 means: what compression is held against."""
    weights = np.zeros(movielens().features + 1, np.float32)
    optimizer = model.Adam(weights)
    for step in range(len(inputs[0]["clicked"])):
        gradients = [
            model.loss_and_gradient(weights, rank["features"][step], rank["clicked"][step])[1]
            for rank in inputs
        ]
        optimizer.step(np.mean(gradients, axis=0))
    return weights


def auc_of(weights):
    test = movielens().test
    return 100 * auc(test.clicked, model.scores(weights.astype(float), test.features))


@pytest.mark.points(8)
@pytest.mark.fault("rate 200mbit on all")
@pytest.mark.needs("test_fp16_means_on_four_ranks", "test_warm_up_is_adam")
def test_clicks_are_predicted_as_without_compression(cluster, rng, measure):
    """On MovieLens, AUC is within 0.2 points of uncompressed Adam with float16, 0.5 with 1 bit.

    120 steps of 4 x 512 rows, 50 of them warm-up, for the same model. In the 1-bit run the
    network is cut in two for half a second: packets come later, and nothing else may change.
    """
    inputs = make_clicks(rng)
    want = auc_of(train_uncompressed(inputs))
    measure.note("AUC of uncompressed Adam", want, "points")
    params = {
        "mode": "train",
        "features": movielens().features,
        "warmup_steps": 50,
        "rate": model.RATE,
        "sleep_s": 0.002,  # 0.24 s in all: nobody is done when the network is cut
    }
    with cluster.job(RANKS, "MovieLens") as job:
        for way, room in (("fp16", 0.2), ("1 bit", 0.5)):
            cut = cluster.timeline("from 0.1s to 0.6s partition {node1,node2} | {node3,node4}")
            if way == "fp16":
                run = job.run(inputs, {**params, "way": way}, timeout_s=LONG_S)
            else:
                run = job.run(inputs, {**params, "way": way}, timeout_s=LONG_S, during=cut)
            weights = [output(outputs, "weights", rank) for rank, outputs in enumerate(run.outputs)]
            expect_ranks_agree(weights, name="weights", where=f"after training with {way}")
            measure.at_least(
                f"AUC with {way}, against uncompressed Adam",
                auc_of(weights[0]) - want,
                -room,
                "points",
                else_="Usual cause: errors of compression are lost, or small gradients are rounded "
                "to zero.\nNext step: print the mean |error| against the mean |momentum|.",
            )
        cut.must_have_fired()  # after the weights: who gives up ends before the partition does


# The report


def make_runs(rng):
    """Runs as lists of [bytes, loss, AUC], and what is right to say of them."""
    target = float(rng.uniform(0.70, 0.72))
    sent = sorted(int(b) for b in rng.integers(1_000, 10_000_000, 5))
    over, under = target + 0.01, target - 0.02
    curves = {
        "float32": [under, target, over, over, over],
        "fp16": [under, over, under, over, over],  # above, below, above for good
        "1 bit": [under, under, over, over, over],
        "2 bits": [over, over, over, over, under],
        "diverged": [over, over, None, None, None],
    }
    share = {"float32": 32, "fp16": 16, "1 bit": 1, "2 bits": 1, "diverged": 1}
    runs = {
        name: [
            [b * share[name], 0.6 - 0.01 * i, a]
            for i, (b, a) in enumerate(zip(sent, aucs, strict=True))
        ]
        for name, aucs in curves.items()
    }
    reached = {"float32": 32 * sent[1], "fp16": 16 * sent[3], "1 bit": sent[2]}
    return {"runs": runs, "target_auc": target, "baseline": "float32"}, reached


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=1, slots=1)
def test_the_report_says_which_run_paid_off(cluster, rng):
    """convergence_report names the run that reaches the target with the fewest bytes, and stays.

    A curve that touches the target and falls again has not reached it, nor has one that
    ends in NaN.
    """
    given, reached = make_runs(rng)
    nobody = {**given, "target_auc": 0.99}
    with cluster.job(1, "report") as job:
        params = {"mode": "report", "reports": [given, nobody]}
        run = job.run([{}], params, output_bytes=1 << 20)
    found = read_answers(run)
    base, none = reached["float32"], dict.fromkeys(given["runs"])
    wanted = [
        (
            {**none, **reached},
            min(reached, key=reached.get),
            {**none, **{name: base / sent for name, sent in reached.items()}},
        ),
        (none, None, none),
    ]
    for answer, target, (sent, winner, saving) in zip(
        found, (given["target_auc"], 0.99), wanted, strict=True
    ):
        where = f"for the target {target:.4f} and the runs {given['runs']}"
        for key, want in (("bytes_to_target", sent), ("winner", winner), ("saving", saving)):
            expect_plain(answer, key, want, where)
        names = ("bytes", "loss", "auc")
        last = {n: dict(zip(names, r[-1], strict=True)) for n, r in given["runs"].items()}
        expect_plain(answer, "final", last, where)


def read_answers(run):
    """What rank 0 handed in as JSON."""
    text = output(run.outputs[0], "answers", 0).tobytes()
    try:
        return [a if isinstance(a, dict) else {} for a in json.loads(text)]
    except ValueError:
        raise Failed("the report cannot be read; return a dict of plain values") from None


def expect_plain(answer, key, want, where):
    if not same(answer.get(key), want):
        raised = f" ({answer['raised']}: {answer['text']})" if "raised" in answer else ""
        raise Failed(
            f"expected {key} = {want}, got {answer.get(key)}{raised}, {where}.\n"
            "Usual cause: the first point at the target is taken, though the curve falls again.\n"
            "Next step: go through the points from the last to the first."
        )


def same(got, want):
    """Equal plain values, numbers to nine digits; None in `want` stands for NaN as well."""
    if isinstance(want, dict):
        return (
            isinstance(got, dict)
            and got.keys() == want.keys()
            and all(same(got[key], value) for key, value in want.items())
        )
    if isinstance(got, int | float) and isinstance(want, int | float):
        return abs(got - want) <= 1e-9 * abs(want)
    return got == want or (want is None and isinstance(got, float) and np.isnan(got))


@pytest.mark.points(3)
@pytest.mark.cluster(hosts=1, slots=1)
def test_mistakes_are_named(cluster):
    """No warm-up, a rate of 0, no parameters, float64 gradients and broken runs are refused."""
    runs = {"a": [[1, 0.6, 0.7], [2, 0.5, 0.8]], "falls": [[2, 0.6, 0.7], [1, 0.5, 0.8]]}
    good, report = {"a": runs["a"]}, {"target_auc": 0.7, "baseline": "a"}
    broken = [
        {"runs": runs, **report},
        {"runs": {**good, "empty": []}, **report},
        {"runs": good, **report, "baseline": "b"},
    ]
    with cluster.job(1, "mistakes") as job:
        run = job.run([{}], {"mode": "mistakes"}, output_bytes=8192)
        raised = [str(kind) for kind in output(run.outputs[0], "raised", 0).ravel()]
        run = job.run([{}], {"mode": "report", "reports": broken}, output_bytes=8192)
        raised += [answer.get("raised", "nothing") for answer in read_answers(run)]
    wanted = {
        "OneBitAdam with warmup_steps=0": "ValueError",
        "OneBitAdam with lr=0": "ValueError",
        "OneBitAdam without parameters": "ValueError",
        "average of a float64 tensor": "TypeError",
        "a run whose bytes fall": "ValueError",
        "a run without points": "ValueError",
        "a baseline that is no run": "ValueError",
    }
    for (what, want), got in zip(wanted.items(), [*raised, *["nothing"] * 7], strict=False):
        if got != want:
            raise Failed(f"expected {want}, got {got}, for {what}.\nNext step: check it first.")
