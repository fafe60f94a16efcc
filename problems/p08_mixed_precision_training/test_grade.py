"""Visible checks of problem 08. Each docstring is what the learner reads in the report."""

import math

import numpy as np
import pytest

from grader.compare import expect_close, expect_equal, expect_ranks_agree, output
from grader.datasets.digits import digits
from grader.ended import Failed

MIB = 1 << 20
WENT_ROUND = "Data went round the network that is counted."
WIDTH = 48  # of the hidden layer of the model "digits"
# Of the largest number: what is left to the rounding of a mean of whole numbers on the wire.
ROUNDING = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
QUIET = {"init_scale": 2.0**10, "growth_interval": 1000}  # a scaler that nothing moves


class Parts:
    """A model "dot": the gradient of its part i is factor i times what the batch holds for it."""

    def __init__(self, shapes, factors=(), frozen=()):
        sizes = [int(np.prod(s, dtype=int)) for s in shapes]
        self.model = {"kind": "dot", "shapes": [list(s) for s in shapes]}
        self.model |= {"factors": list(factors), "frozen": list(frozen)}
        per_part = [0.0 if i in frozen else 1.0 for i in range(len(sizes))]
        if factors:
            per_part = [f * p for f, p in zip(factors, per_part, strict=True)]
        self.total = sum(sizes)
        self.factors = np.repeat(per_part, sizes)

    def batches(self, rng, ranks, steps, count, most=8):
        """Whole numbers other than 0: x for each rank, `steps` times `count` micro-batches."""
        shape = (ranks, steps, count, self.total)
        x = rng.integers(1, most, shape, endpoint=True) * rng.choice([-1, 1], shape)
        return [{"x": part.astype(np.float32)} for part in x]

    def gradient(self, inputs, step):
        """The mean over all micro-batches of all ranks, in float64."""
        x = np.stack([rank["x"][step] for rank in inputs]).astype(np.float64)
        return self.factors * x.mean(axis=(0, 1))

    def descend(self, inputs, skipped=(), max_norm=math.inf):
        """Parameters after each step of one process, whose learning rate is 1."""
        place = np.asarray(inputs[0].get("start", np.zeros(self.total)), np.float64)
        for step in range(len(inputs[0]["x"])):
            if step not in skipped:
                place = place - clipped(self.gradient(inputs, step), max_norm)
            yield place


def clipped(gradient, max_norm):
    norm = math.hypot(*gradient)
    return gradient * (max_norm / norm) if norm > max_norm else gradient


def train(job, inputs, model, *, during=None, timeout_s=None, **settings):
    """Let the submission make a step for each row of x."""
    usual = {"mode": "train", "compute": "float16", "wire": "float16", "max_norm": None}
    usual |= {"optimizer": "SGD", "rate": 1.0, "scaler": QUIET, "keep_every": 1}
    params = {**usual, "model": model, **settings}
    return job.run(inputs, params, output_bytes=8 * MIB, during=during, timeout_s=timeout_s)


def expect_decisions(run, scales, skipped=(), cause="", next_step=""):
    """All ranks must have made the same steps, and hold `scales` after each."""
    for step, scale in enumerate(scales):
        for rank, outputs in enumerate(run.outputs):
            where = f"at step {step} on rank {rank} of {len(run.outputs)}"
            advice = f"{where}.\nUsual cause: {cause}\nNext step: {next_step}"
            words = {True: "the step made", False: "the step skipped"}
            want, got = step not in skipped, bool(output(outputs, "made", rank)[step])
            if want != got:
                raise Failed(f"expected {words[want]}, got {words[got]}, {advice}")
            got = float(output(outputs, "scales", rank)[step])
            if got != scale:
                raise Failed(f"expected scale {scale:g} after it, got {got:g}, {advice}")


def expect_parameters(run, want, relative, **advice):
    """Parameters after each step on each rank; want: one vector a step."""
    for step, vector in enumerate(want):
        for rank, outputs in enumerate(run.outputs):
            got = output(outputs, "parameters", rank)
            where = f"in the parameters of rank {rank} of {len(run.outputs)} after step {step}"
            if got.dtype != np.float32:
                raise Failed(f"expected float32, got {got.dtype}, {where}: master weights")
            expect_close(got[step], vector, relative=relative, where=where, **advice)


def expect_same_bits(run, where, **advice):
    found = [output(outputs, "parameters", rank) for rank, outputs in enumerate(run.outputs)]
    expect_ranks_agree(found, name="parameters", where=where, **advice)
    return found[0]


class Net:
    """The model "digits" by hand, in one process and one type."""

    def __init__(self, vector, dtype):
        shapes, self.weights = [(WIDTH, 64), (WIDTH,), (10, WIDTH), (10,)], []
        for shape, piece in zip(shapes, np.split(vector, self.cuts(shapes)), strict=True):
            self.weights.append(piece.reshape(shape).astype(dtype))

    @staticmethod
    def cuts(shapes):
        return np.cumsum([math.prod(shape) for shape in shapes])[:-1]

    @staticmethod
    def start(rng):
        """Weights to start from, uniform as torch's own, in one vector."""
        hidden, out = 64**-0.5, WIDTH**-0.5
        sizes = [(hidden, WIDTH * 64), (hidden, WIDTH), (out, 10 * WIDTH), (out, 10)]
        return np.concatenate([rng.uniform(-b, b, n) for b, n in sizes]).astype(np.float32)

    def loss(self, x, y):
        """Mean cross-entropy; what backward needs is kept."""
        w1, b1, w2, b2 = self.weights
        self.h = np.tanh(x @ w1.T + b1)
        scores = self.h @ w2.T + b2
        scores = scores - scores.max(1, keepdims=True)
        self.p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        return -np.log(self.p[np.arange(len(y)), y]).mean()

    def step(self, x, y, rate):
        """One step of gradient descent on a batch."""
        self.loss(x, y)
        delta = (self.p - np.eye(10, dtype=x.dtype)[y]) / len(y)
        back = (delta @ self.weights[2]) * (1 - self.h**2)
        gradients = [back.T @ x, back.sum(0), delta.T @ self.h, delta.sum(0)]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight -= rate * gradient


def make_digits(rng, ranks, steps, count=1, batch=16):
    """For each rank its own micro-batches of handwritten digits, and the common start."""
    training, _ = digits()
    picks = rng.integers(0, len(training), (ranks, steps, count, batch))
    start = Net.start(rng)
    return [
        {"x": training.images[pick], "y": training.labels[pick], "start": start} for pick in picks
    ]


def losses_of(vectors):
    """Loss over all 1,500 training images, for each vector of parameters."""
    training, _ = digits()
    images = training.images.astype(np.float64)
    return np.array([Net(vector, np.float64).loss(images, training.labels) for vector in vectors])


def float32_twin(inputs, rate, keep_every, skipped):
    """Parameters of one process in float32 that sees all micro-batches of all ranks at once."""
    net, kept = Net(inputs[0]["start"], np.float32), []
    for step in range(len(inputs[0]["x"])):
        if step not in skipped:
            x = np.concatenate([rank["x"][step].reshape(-1, 64) for rank in inputs])
            y = np.concatenate([rank["y"][step].reshape(-1) for rank in inputs])
            net.step(x, y, np.float32(rate))
        if (step + 1) % keep_every == 0:
            kept.append(np.concatenate([weight.reshape(-1) for weight in net.weights]))
    return kept


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=1, slots=1)
def test_scaler_follows_its_rules(cluster, rng):
    """The scale grows after growth_interval good steps in a row and backs off at each overflow.

    It stays between min_scale and max_scale, and settings that make no sense raise ValueError.
    """
    settings = [
        {"init_scale": 1024.0, "growth_interval": 3},
        {"init_scale": 4.0, "growth_interval": 2, "backoff_factor": 0.25, "growth_factor": 4.0},
        {"init_scale": 2.0**22, "growth_interval": 1, "max_scale": 2.0**23, "min_scale": 2.0**20},
    ]
    with cluster.job(1, "scaler") as job:
        for given in settings:
            found = [*(rng.random(40) < 0.25), *[True] * 5, *[False] * 12]
            params = {"mode": "scaler", "scaler": given, "found": [int(f) for f in found]}
            got = output(job.run([{}], params).outputs[0], "scales", 0)
            for step, (is_, want) in enumerate(zip(got, scale_rules(found, **given), strict=True)):
                if is_ != want:
                    before = ["overflow" if f else "good" for f in found[max(0, step - 4) : step]]
                    raise Failed(
                        f"expected scale {want:g}, got {is_:g}, after {step} updates (the last "
                        f"were {', '.join(before)}) of DynamicLossScaler({given}).\nUsual cause: "
                        "an overflow does not restart the count of good steps, or the scale "
                        "leaves min_scale to max_scale.\nNext step: follow the count by hand."
                    )
        bad = [{"init_scale": 0.5}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}]
        bad += [{"growth_interval": 0}, {"init_scale": 2.0**25}, {"min_scale": 0.0}]
        run = job.run([{}], {"mode": "bad scaler", "scalers": bad})
        for given, raised in zip(bad, output(run.outputs[0], "raised", 0), strict=True):
            if raised != "ValueError":
                raise Failed(f"expected ValueError, got {raised}, for DynamicLossScaler({given})")


def scale_rules(
    found,
    init_scale,
    growth_interval,
    growth_factor=2.0,
    backoff_factor=0.5,
    min_scale=1.0,
    max_scale=2.0**24,
):
    """The scale at the start and after each of `found`."""
    scale, good = init_scale, 0
    yield scale
    for overflow in found:
        good = 0 if overflow else good + 1
        if overflow:
            scale = max(min_scale, scale * backoff_factor)
        elif good == growth_interval:
            scale, good = min(max_scale, scale * growth_factor), 0
        yield scale


@pytest.mark.points(6)
@pytest.mark.cluster(hosts=1, slots=1)
def test_clip_looks_at_all_gradients_together(cluster, rng):
    """clip_global_norm scales all tensors by one factor, and only when their norm is too large.

    Magnitudes of 1e30 and 1e-30 are among them: their squares are no float32 numbers.
    """
    shapes = [(5, 3), (), (0,), (40,)]
    with cluster.job(1, "clip") as job:
        for size in (1.0, 1e30, 1e-30, 0.0):
            grads = {
                f"g{i}": (size * rng.normal(size=shape)).astype(np.float32)
                for i, shape in enumerate(shapes)
            }
            norm = math.hypot(*np.concatenate([g.reshape(-1) for g in grads.values()]).tolist())
            for max_norm in (0.25 * norm, 4.0 * norm, None) if norm else (1.0,):
                run = job.run([grads], {"mode": "clip", "max_norm": max_norm})
                bound = math.inf if max_norm is None else max_norm
                factor = bound / norm if norm > bound else 1.0
                where = f"norm {norm:.3g}, max_norm {bound:.3g}"
                for name, grad in grads.items():
                    expect_close(
                        output(run.outputs[0], name, 0),
                        grad * np.float32(factor),
                        relative=1e-4,
                        where=f"in {name} of shape {grad.shape}, {where}",
                        cause="each tensor is clipped by a norm of its own, or squares leave the "
                        "range of float32.",
                        next_step="add up squares in float64, over all tensors.",
                    )
                got = output(run.outputs[0], "norm", 0)
                expect_close(got, np.array(norm), relative=1e-4, where=f"in the returned {where}")


@pytest.mark.points(10)
def test_one_step_equals_one_process(cluster, rng):
    """A step uses the mean over all micro-batches of all ranks, for 1 to 4 ranks and each type.

    Whole numbers that 16 bits hold. The group is not always the whole job.
    """
    parts = Parts([(3, 4), (7,), (), (5, 2)])
    types = [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")]
    types += [("bfloat16", "float16"), ("float16", "float32")]
    with cluster.job(4, "1 to 4 ranks") as job:
        for ranks in (4, 2, 1, 3):
            pairs = types if ranks == 4 else types[1:3]
            for count, (compute, wire) in enumerate(pairs, start=1):
                inputs = parts.batches(rng, ranks, 3, count)
                run = train(job, inputs, parts.model, compute=compute, wire=wire)
                expect_decisions(run, [QUIET["init_scale"]] * 3)
                expect_parameters(
                    run,
                    parts.descend(inputs),
                    max(ROUNDING[compute], ROUNDING[wire]),
                    cause=f"divided by another number than {ranks} ranks x {count} micro-batches, "
                    "or not by the scale.",
                    next_step="print the gradient of one parameter before and after the sum.",
                )


@pytest.mark.points(10)
@pytest.mark.needs("test_one_step_equals_one_process")
def test_the_mean_gradient_is_clipped_once(cluster, rng):
    """Clipping looks at the norm of the mean over the ranks, unscaled: that of one process.

    In one case the ranks' gradients are large and cancel each other: nothing is to be clipped.
    """
    parts = Parts([(3, 4), (8,), (), (5, 2)])
    with cluster.job(4, "clipping") as job:
        for cancelling in (False, True):
            inputs = parts.batches(rng, 4, 3, 2)
            if cancelling:
                away = rng.integers(-100, 100, parts.total, endpoint=True)
                for sign, rank in zip((1, 1, -1, -1), inputs, strict=True):
                    rank["x"] += sign * away
            norms = [math.hypot(*parts.gradient(inputs, step)) for step in range(3)]
            max_norm = 1.5 * max(norms) if cancelling else 0.5 * min(norms)
            run = train(
                job, inputs, parts.model, max_norm=max_norm, scaler={**QUIET, "init_scale": 64.0}
            )
            expect_parameters(
                run,
                parts.descend(inputs, max_norm=max_norm),
                ROUNDING["float16"],
                cause="clipped too early: before the sum over ranks, for each micro-batch, or "
                "while the loss scale is still in the gradient.",
                next_step="sum, unscale, then take one norm over all parameters.",
            )


def spoil(rng, inputs, steps, values=(2000.0, 1e6)):
    """Put one number that overflows into the data of a single rank, at each of `steps`."""
    for step, value in zip(steps, values, strict=True):
        x = inputs[int(rng.integers(len(inputs)))]["x"]
        x[step, int(rng.integers(x.shape[1])), int(rng.integers(x.shape[2]))] = value


@pytest.mark.points(12)
@pytest.mark.needs("test_one_step_equals_one_process")
def test_all_ranks_skip_the_same_step(cluster, rng):
    """When one rank overflows, all skip that step and halve the scale; the next step is made.

    Twice in 8 steps one number on one rank is too large: 2,000, which overflows in the scaled
    gradient alone while the loss is finite, and 1,000,000, which is inf in float16.
    """
    parts = Parts([(6,), (2, 3)])
    with cluster.job(4, "overflow") as job:
        for ranks in (4, 3):
            inputs = parts.batches(rng, ranks, 8, 2)
            skipped = sorted(int(s) for s in rng.choice(8, 2, replace=False))
            spoil(rng, inputs, skipped)
            run = train(job, inputs, parts.model, timeout_s=5)
            found = [step in skipped for step in range(8)]
            expect_decisions(
                run,
                list(scale_rules(found, **QUIET))[1:],
                skipped,
                cause="a rank decides by what it has seen itself, or what overflowed is still in "
                ".grad at the next step.",
                next_step="let all ranks take the maximum of their flags before anything else.",
            )
            expect_parameters(
                run,
                parts.descend(inputs, skipped),
                ROUNDING["float16"],
                cause="a skipped step has moved the parameters.",
            )


@pytest.mark.points(6)
@pytest.mark.needs("test_all_ranks_skip_the_same_step")
def test_a_skipped_step_leaves_no_trace(cluster, rng):
    """After a skipped step Adam goes on as if that step had not been.

    Adam's momentum moves parameters for a gradient of zero too, and its bias correction counts.
    """
    parts = Parts([(30,)])
    inputs = parts.batches(rng, 2, 6, 1)
    skipped = [int(rng.integers(1, 4))]
    spoil(rng, inputs, skipped, values=[1e6])
    first = second = place = np.zeros(parts.total)
    want, count = [], 0
    for step in range(6):
        if step not in skipped:
            gradient, count = parts.gradient(inputs, step), count + 1
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            spread = np.sqrt(second / (1 - 0.999**count)) + 1e-8
            place = place - 0.125 * first / (1 - 0.9**count) / spread
        want.append(place)
    with cluster.job(2, "Adam") as job:
        run = train(job, inputs, parts.model, optimizer="Adam", rate=0.125)
        expect_parameters(
            run,
            want,
            ROUNDING["float16"],
            cause=f"optimizer.step() was called at step {skipped[0]}, which all ranks skip.",
            next_step="do not call it; a gradient of zero is not nothing.",
        )


@pytest.mark.points(10)
@pytest.mark.needs("test_one_step_equals_one_process")
def test_large_and_tiny_gradients_survive(cluster, rng):
    """Scaled gradients near 65,504 on all four ranks, and true ones of 3e-8, in the same step.

    The large ones overflow unless they are divided before the sum; the tiny ones vanish where the
    scale is taken away before it.
    """
    parts = Parts([(50,), (50,)], factors=[2.0**-8, 2.0**-33])
    inputs = parts.batches(rng, 4, 2, 1)
    for rank in inputs:
        rank["x"] = rng.integers(200, 255, rank["x"].shape, endpoint=True).astype(np.float32)
    with cluster.job(4, "large and tiny") as job:
        run = train(job, inputs, parts.model, scaler={**QUIET, "init_scale": 2.0**16})
        expect_decisions(
            run,
            [2.0**16] * 2,
            cause="four numbers near 65,504 are added in float16: inf, though their mean is not.",
            next_step="divide by the number of ranks before the reduction, not after.",
        )
        for step, want in enumerate(parts.descend(inputs)):
            for rank, outputs in enumerate(run.outputs):
                got = output(outputs, "parameters", rank)[step]
                for name, part in (("large", slice(0, 50)), ("tiny", slice(50, 100))):
                    expect_close(
                        got[part],
                        want[part],
                        relative=1e-3,
                        where=f"in the {name} part on rank {rank} after step {step}",
                        cause="the loss is not scaled, or gradients are unscaled while they are "
                        "still float16, where nothing is between 0 and 6e-8.",
                        next_step="keep the scale until the sum is back in float32.",
                    )


@pytest.mark.points(6)
@pytest.mark.needs("test_one_step_equals_one_process")
def test_what_is_added_up_is_float32(cluster, rng):
    """16 micro-batches are added in float32, and small steps change the weights.

    One large gradient and 15 small ones: in 16 bits each small one is rounded away. And a step of
    2^-12 from 1.0, which in 16 bits is no step.
    """
    parts = Parts([(40,)])
    with cluster.job(2, "added up") as job:
        for dtype, large in (("float16", 2048.0), ("bfloat16", 256.0)):
            inputs = parts.batches(rng, 2, 1, 16, most=1)
            sign = rng.choice([-1.0, 1.0], parts.total).astype(np.float32)
            for rank in inputs:
                rank["x"][:] = sign
                rank["x"][0, 0] *= large
            run = train(
                job, inputs, parts.model, compute=dtype, wire=dtype, scaler={"init_scale": 16.0}
            )
            expect_parameters(
                run,
                parts.descend(inputs),
                {"float16": 2e-3, "bfloat16": 1.5e-2}[dtype],
                cause=f"micro-batches are added up in {dtype}.",
                next_step="add each micro-batch's gradient to a float32 vector.",
            )
            small = Parts([(40,)], factors=[2.0**-12])
            inputs = small.batches(rng, 2, 8, 1, most=1)
            for rank in inputs:
                rank["x"][:] = 1.0
                rank["start"] = np.ones(small.total, np.float32)
            run = train(job, inputs, small.model, compute=dtype, wire=dtype)
            expect_parameters(
                run,
                small.descend(inputs),
                1e-5,
                cause=f"the weights themselves are kept in {dtype}.",
                next_step="let the optimizer hold float32 weights, and cast copies for forward.",
            )


@pytest.mark.points(10)
@pytest.mark.needs("test_one_step_equals_one_process")
def test_gradients_travel_in_16_bits(cluster, rng, measure):
    """Half a million gradients on four hosts take at most 0.54 of what float32 takes, for k = 2.

    What float32 takes: 2(n-1)/n times 4 bytes a parameter (Patarasuk and Yuan, 2009), counted on
    the hosts' interfaces, headers and vote included. Accumulation adds nothing.
    """
    parts = Parts([(MIB // 2,)])
    float32_bytes = 2 * 3 / 4 * 4 * parts.total
    with cluster.job(4, "2 MiB of float32, counted") as job:
        for dtype, most in (("float16", 1000), ("bfloat16", 120)):
            inputs = parts.batches(rng, 4, 1, 2, most)
            scaler = {**QUIET, "init_scale": 16.0}
            run = train(job, inputs, parts.model, compute=dtype, wire=dtype, scaler=scaler)
            expect_parameters(run, parts.descend(inputs), ROUNDING[dtype])
            received = sum(t.received_bytes for t in run.traffic) / (4 * float32_bytes)
            name = f"{dtype}: bytes received by all hosts, against float32"
            measure.at_least(name, received, 0.5, "x", else_=WENT_ROUND)
            measure.at_most(
                f"{dtype}: most bytes sent by a host, against float32",
                max(t.sent_bytes for t in run.traffic) / float32_bytes,
                0.54,
                "x",
                else_="Usual cause: float32 travels and is cast afterwards, or each micro-batch "
                "is reduced.\nNext step: cast the mean over micro-batches to wire_dtype, and "
                "reduce that tensor once.",
            )
            control = max(t.control_bytes for t in run.traffic)
            name = "bytes on the launcher's network"
            measure.at_most(name, control, MIB / 4, "bytes", else_=WENT_ROUND)


@pytest.mark.points(8)
@pytest.mark.needs("test_all_ranks_skip_the_same_step")
def test_two_hundred_steps_track_float32(cluster, rng, measure):
    """In 200 steps on handwritten digits the loss stays within 0.3% of one float32 process's.

    Parameters are bit-identical on all ranks. With float16, one rank's images hold 1,000,000 at
    two steps: in float16 that is inf, so these are skipped by all.
    """
    steps, rate, every = 200, 0.25, 20
    with cluster.job(3, "200 steps") as job:
        for dtype in ("float16", "bfloat16"):
            inputs = make_digits(rng, 3, steps)
            skipped = sorted(rng.choice(np.arange(10, 190), 2, replace=False).tolist())
            if dtype == "bfloat16":
                skipped = []
            for step in skipped:
                inputs[int(rng.integers(3))]["x"][step, 0, 3, 20] = 1e6
            settings = {"compute": dtype, "wire": dtype, "rate": rate, "keep_every": every}
            settings["timeout_s"] = 25
            settings["model"] = {"kind": "digits", "width": WIDTH}
            run = train(job, inputs, scaler={"init_scale": 2.0**10}, **settings)
            found = [step in skipped for step in range(steps)]
            scales = list(scale_rules(found, 2.0**10, 2000))[1:]
            expect_decisions(run, scales, skipped, "forward is computed in float32.", "cast x.")
            kept = expect_same_bits(
                run,
                f"after 20, 40, ... {steps} steps in {dtype}",
                cause="a rank's own share is not rounded as the others see it.",
                next_step="take what the reduction gives; add nothing to it.",
            )
            want = losses_of(float32_twin(inputs, rate, every, skipped))
            measure.note(f"{dtype}: loss after {steps} steps", losses_of(kept)[-1])
            measure.at_most(
                f"{dtype}: loss away from float32",
                100 * np.max(np.abs(losses_of(kept) / want - 1)),
                0.3,
                "%",
                else_="Usual cause: weights or sums in 16 bits.\nNext step: compare the loss of "
                "each step with a float32 run on one rank.",
            )


@pytest.mark.points(4)
@pytest.mark.network_faults
@pytest.mark.needs("test_all_ranks_skip_the_same_step")
def test_a_partition_and_a_pause_change_nothing(cluster, rng, measure):
    """Cut in two for 0.4 s, then with node3 stopped for 0.3 s, training gives the same bits.

    Nobody may give up waiting for a vote or a sum: what is late is not lost.
    """
    inputs = make_digits(rng, 4, 100)
    skipped = sorted(rng.choice(100, 3, replace=False).tolist())
    for step in skipped:
        inputs[int(rng.integers(4))]["x"][step, 0, 3, 20] = 1e6
    settings = {"model": {"kind": "digits", "width": WIDTH}, "rate": 0.25, "max_norm": 1.0}
    settings |= {"scaler": {"init_scale": 2.0**10, "growth_interval": 30}, "keep_every": 100}
    settings |= {"sleep_s": 0.002}
    with cluster.job(4, "partition and pause") as job:
        calm = train(job, inputs, timeout_s=20, **settings)
        # Of 0.2 s of sleep at most 0.05 s are over when the network is cut, 0.1 s when node3 stops.
        faults = cluster.timeline(
            "from 0.05s to 0.45s partition {node1,node2} | {node3,node4}\n"
            "from 0.5s to 0.8s pause node3"
        )
        run = train(job, inputs, during=faults, timeout_s=20, **settings)
    for name in ("made", "scales", "parameters"):
        for rank, outputs in enumerate(run.outputs):
            expect_equal(
                output(outputs, name, rank),
                output(calm.outputs[0], name, 0),
                where=f"in {name} of rank {rank}, against the same training without faults",
                cause="a rank went on without what was late.",
                next_step="wait without a limit of your own; the launcher has one.",
            )
    faults.must_have_fired()  # after the bits: who gives up ends before the faults do
    measure.note("time with faults", run.elapsed_s, "s")
    measure.note("time without", calm.elapsed_s, "s")
