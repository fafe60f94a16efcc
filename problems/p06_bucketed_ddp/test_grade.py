"""Visible checks of problem 06. Each docstring is what the learner reads in the report."""

import model
import numpy as np
import pytest
import torch

from grader.compare import expect_close, expect_equal, expect_ranks_agree, output
from grader.datasets.digits import digits
from grader.ended import Failed

MIB = 1 << 20
LINK_MBIT = 100
STALL_S = 0.7
HEADER_BYTES = 14 + 20 + 32  # Ethernet, IP, TCP with time stamps
LARGEST = 1000  # of the numbers in a batch
EXACT = 1e-12  # of the largest: room for dividing before or after the sum, for no more
SAME_TRAINING = 1e-9
WENT_ROUND = "Data went round the network that is counted."
torch.set_num_threads(1)  # the ranks need the processors


class Parts:
    """A model "dot": the gradient of its part i is what the batch holds for part i."""

    def __init__(self, shapes, **awkward):
        self.shape = {"kind": "dot", "shapes": [list(s) for s in shapes], **awkward}
        sizes = [int(np.prod(s, dtype=int)) for s in shapes]
        self.total, self.count = sum(sizes), len(sizes)
        self.cuts = np.cumsum([0, *sizes])
        self.twins = {j: i for i, j in awkward.get("tied", ())}
        not_learning = {*self.twins, *awkward.get("frozen", ())}
        self.learning = [i for i in range(self.count) if i not in not_learning]

    def batches(self, rng, steps):
        """`steps` batches of whole numbers for one rank."""
        return {"x": rng.integers(-LARGEST, LARGEST, (steps, self.total)).astype(float)}

    def gradient(self, x, order, part):
        """What one rank's backward leaves in `part`; None when it does not reach it."""
        used = [i for i in order if i == part or self.twins.get(i) == part]
        return sum(x[self.cuts[i] : self.cuts[i + 1]] for i in used) if used else None

    def windows(self, inputs, orders, accumulate=1):
        """For each update and learning part: the mean over the ranks that train, or None."""
        updates = [-(-len(rank["x"]) // accumulate) for rank in inputs]
        for update in range(max(updates)):
            training = [r for r, count in enumerate(updates) if update < count]
            steps = range(update * accumulate, (update + 1) * accumulate)
            for part in self.learning:
                found = [
                    self.gradient(inputs[r]["x"][step], orders[r][step], part)
                    for r in training
                    for step in steps
                    if step < len(inputs[r]["x"])
                ]
                found = [g for g in found if g is not None]
                yield update, part, sum(found) / len(training) if found else None

    def natural(self, inputs):
        return [[list(range(self.count))] * len(rank["x"]) for rank in inputs]


def expect_gradients(run, parts, inputs, orders, accumulate=1, **advice):
    """Every rank must hold, after each update, the mean that one process would have computed."""
    names = {part: f"parts.{part}" for part in parts.learning}
    widths = {part: parts.cuts[part + 1] - parts.cuts[part] for part in parts.learning}
    starts = dict(zip(parts.learning, np.cumsum([0, *widths.values()]), strict=False))
    for update, part, want in parts.windows(inputs, orders, accumulate):
        for rank, outputs in enumerate(run.outputs):
            if update * accumulate >= len(inputs[rank]["x"]):
                continue
            got = output(outputs, "gradients", rank)[update]
            got = got[starts[part] : starts[part] + widths[part]]
            where = f"in the gradient of {names[part]}, update {update}, rank {rank}"
            where += f" of {len(inputs)}"
            if (want is None) != bool(np.isnan(got).all()):
                filled = ("None", "a gradient") if want is None else ("a gradient", "None")
                raise Failed(f"expected {filled[0]}, got {filled[1]} {where}.\n{_words(advice)}")
            if want is not None:
                tolerance = 1e-6 if part in parts.shape.get("single", ()) else EXACT
                tolerance *= LARGEST / (np.abs(want).max() or 1.0)  # means of them may cancel out
                expect_close(got, want, relative=tolerance, where=where, **advice)


def _words(advice):
    return f"Usual cause: {advice.get('cause', '')}\nNext step: {advice.get('next_step', '')}"


def train(job, parts, inputs, orders=None, **params):
    """Build the wrapper and train on all batches, in one case."""
    orders = parts.natural(inputs) if orders is None else orders
    return job.run(inputs, {"model": {**parts.shape, "seed": 6}, "orders": orders, **params})


def build_then_train(job, parts, inputs, **params):
    """The same in two cases, so that what the second one carries is training alone."""
    orders = parts.natural(inputs)
    job.run([{} for _ in inputs], {"model": {**parts.shape, "seed": 6}, **params})
    return job.run(inputs, {"orders": orders, **params}, output_bytes=parts.total * 8)


def state_of(module):
    """Parameters and buffers of a model as ranks hand them in."""
    flat = [
        torch.cat([torch.zeros(0).double(), *(t.detach().reshape(-1).double() for t in tensors)])
        for tensors in (module.parameters(), module.buffers())
    ]
    return {"parameters": flat[0].numpy(), "buffers": flat[1].numpy()}


def make_digits(rng, steps, batch=16):
    """For each rank its own batches of handwritten digits; steps: how many, by rank."""
    training, _ = digits()
    picks = [rng.integers(0, len(training), (count, batch)) for count in steps]
    images = training.images.astype(np.float64)
    return [{"x": images[pick], "y": training.labels[pick]} for pick in picks]


class OneProcess:
    """The same model, one process, all batches: what the ranks together must arrive at.

    accumulate: micro-batches to an update. The last of an update, whose backward is reduced, sees
    the buffers of the lowest rank that trains; earlier ones see those of their own rank.
    """

    def __init__(self, seed, inputs, rate, accumulate=1):
        self.module, self.losses = model.build("digits", seed), []
        self._buffers = [[b.clone() for b in self.module.buffers()] for _ in inputs]
        learning = [p for p in self.module.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(learning, lr=rate)
        for start in range(0, max(len(rank["x"]) for rank in inputs), accumulate):
            window = slice(start, start + accumulate)
            batches = {
                rank: [*zip(given["x"][window], given["y"][window], strict=True)]
                for rank, given in enumerate(inputs)
                if start < len(given["x"])
            }
            self.lowest = min(batches)
            for rank, (*earlier, _) in batches.items():
                for batch in earlier:
                    self._backward(rank, self._buffers[rank], batch, len(batches))
            shared = self._buffers[self.lowest]
            losses = [
                self._backward(rank, shared, last, len(batches))
                for rank, (*_, last) in batches.items()
            ]
            self.losses.append(sum(losses))
            optimizer.step()
            optimizer.zero_grad()
        self.take_buffers_of(self.lowest)

    def take_buffers_of(self, rank):
        """Put the buffers that `rank` has in the end into the module."""
        _fill(self.module.buffers(), self._buffers[rank])

    def _backward(self, rank, buffers, batch, ranks):
        _fill(self.module.buffers(), buffers)
        loss = self.module(*(torch.from_numpy(np.asarray(part)) for part in batch)) / ranks
        loss.backward()
        self._buffers[rank] = [buffer.clone() for buffer in self.module.buffers()]
        return loss.item()


def _fill(buffers, values):
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


@pytest.mark.points(8)
def test_gradients_equal_one_process(cluster, rng):
    """After backward, gradients are those of one process on all ranks' batches, for 1 to 4 ranks.

    Parts of several shapes, one of them tied, one frozen, one without dimensions. The group is not
    always the whole job.
    """
    parts = Parts([(3, 4), (7,), (), (12,), (5, 2)], tied=[(0, 3)], frozen=[1])
    with cluster.job(4, "1 to 4 ranks") as job:
        for ranks in (4, 2, 1, 3):
            inputs = [parts.batches(rng, 3) for _ in range(ranks)]
            orders = parts.natural(inputs)
            for cap_mb in (25.0, 0.0001):
                run = train(job, parts, inputs, orders, cap_mb=cap_mb)
                expect_gradients(
                    run,
                    parts,
                    inputs,
                    orders,
                    cause="the sum is not divided by the number of ranks, or the mean is added to "
                    "the rank's own gradient instead of replacing it.",
                    next_step="print .grad of one parameter on two ranks, before and after.",
                )


@pytest.mark.points(6)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_every_rank_starts_as_rank_0(cluster, rng):
    """Construction gives all ranks the parameters and buffers of rank 0.

    Frozen parameters, integer buffers and buffers that no checkpoint holds are among them.
    """
    seed = int(rng.integers(1, 1000))
    want = state_of(model.build("digits", seed))
    with cluster.job(3, "construction") as job:
        for ranks in (3, 2):
            run = job.run(
                [{} for _ in range(ranks)],
                {"model": {"kind": "digits", "seed": seed}, "state": True},
                output_bytes=MIB,
            )
            for rank, outputs in enumerate(run.outputs):
                for name, value in want.items():
                    expect_equal(
                        output(outputs, name, rank),
                        value,
                        where=f"in the {name} of rank {rank} after construction",
                        cause="only what learns, or only parameters, are broadcast.",
                        next_step="go through module.parameters() and module.buffers().",
                    )


@pytest.mark.points(8)
@pytest.mark.needs("test_every_rank_starts_as_rank_0")
def test_buffers_follow_rank_0(cluster, rng):
    """Each forward in training computes with rank 0's buffers; evaluation sends nothing.

    The model normalises by its running mean. Each rank updates that from its own batch, so after a
    step the ranks would compute with different ones. Then the last rank evaluates all alone.
    """
    seed = int(rng.integers(1, 1000))
    inputs = make_digits(rng, [5, 5, 5])
    twin = OneProcess(seed, inputs, 0.125)
    with cluster.job(3, "buffers") as job:
        params = {"model": {"kind": "digits", "seed": seed}, "state": True}
        run = job.run(inputs, params, output_bytes=MIB)
        for rank, outputs in enumerate(run.outputs):
            twin.take_buffers_of(rank)
            for name, want in state_of(twin.module).items():
                expect_close(
                    output(outputs, name, rank),
                    want,
                    relative=SAME_TRAINING,
                    where=f"in the {name} of rank {rank} after 5 steps",
                    cause="each rank goes on with buffers of its own.",
                    next_step="set all buffers to rank 0's at the start of a forward in training.",
                )
        run = job.run(inputs, {"alone": 2}, timeout_s=3)
        with torch.no_grad():
            x, y = (torch.from_numpy(inputs[2][name][0]) for name in "xy")
            want = np.array(twin.module.eval()(x, y).item())
        got = output(run.outputs[2], "loss", 2)
        expect_close(got, want, relative=SAME_TRAINING, where="in the loss of rank 2 on its own")


@pytest.mark.points(8)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_only_gradients_that_are_needed_travel(cluster, rng, measure):
    """A step on four hosts sends at most 1.25 times the least possible; nothing frozen or twice.

    The least is 2(n-1)/n of the gradients' bytes. 2 MiB learn, 1.5 of them in a weight used twice;
    6 MiB are frozen.
    """
    weight, frozen, bias = (3, MIB // 16), (6, MIB // 8), (MIB // 16,)
    parts = Parts([weight, frozen, bias, weight], tied=[(0, 3)], frozen=[1])
    inputs = [{"x": rng.normal(size=(1, parts.total))} for _ in range(4)]
    with cluster.job(4, "one step, counted") as job:
        run = build_then_train(job, parts, inputs, cap_mb=0.5)
        advice = {"cause": "a tied weight takes part twice.", "next_step": "see parameters()."}
        expect_gradients(run, parts, inputs, parts.natural(inputs), **advice)
    least = 2 * 3 / 4 * 2 * MIB
    received = sum(t.received_bytes for t in run.traffic) / (4 * least)
    measure.at_least("bytes received, against the least", received, 1.0, "x", else_=WENT_ROUND)
    measure.at_most(
        "most bytes sent by a host, against the least possible",
        max(t.sent_bytes for t in run.traffic) / least,
        1.25,
        "x",
        else_="Usual cause: frozen parameters are in the buckets, or a tied one is there under "
        "each of its names.\nNext step: fill buckets from module.parameters(), which names each "
        "once, and leave out what has requires_grad=False.",
    )
    control = max(t.control_bytes for t in run.traffic)
    measure.at_most("bytes on the launcher's network", control, MIB / 2, "bytes", else_=WENT_ROUND)


@pytest.mark.points(10)
@pytest.mark.cluster(hosts=2, slots=1)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_buckets_are_as_large_as_the_cap(cluster, rng, measure):
    """30 gradients of 6 KiB and one of 40 KiB travel in 17 reductions when the cap is 16 KiB.

    Every message says what it is, in bytes that are neither gradients nor TCP's headers. Caps of
    1 MiB (1 bucket) and of 6 KiB (31) make a scale, on which 16 KiB must come out at 17: two
    gradients fit, and the large one goes alone.
    """
    parts = Parts([(768,)] * 15 + [(5120,)] + [(768,)] * 15)
    words = {cap_kb: float("inf") for cap_kb in (1024, 6, 16)}
    with cluster.job(2, "31 gradients") as job:
        for cap_kb in 3 * list(words):  # a lost packet only adds: the least is what was meant
            inputs = [parts.batches(rng, 8) for _ in range(2)]
            run = build_then_train(job, parts, inputs, cap_mb=cap_kb / 1024)
            words[cap_kb] = min(words[cap_kb], beside_payload(run, 2 * 8 * 8 * parts.total) / 8)
    for cap_kb, found in words.items():
        measure.note(f"bytes of a step beside gradients, cap {cap_kb} KiB", found, "bytes")
    measure.at_least(
        "bytes beside gradients, 31 buckets against 1",
        words[6] / words[1024],
        5,
        "x",
        else_="Usual cause: the cap is not looked at: one reduction for each gradient, or one for "
        "all.\nNext step: fill a bucket until the next gradient would exceed bucket_cap_mb MiB.",
    )
    count = 1 + 30 * (words[16] - words[1024]) / (words[6] - words[1024])
    measure.note("reductions of a step at a cap of 16 KiB", count)
    if abs(count - 17) > 3:
        raise Failed(
            f"expected 17 reductions of a step at a cap of 16 KiB, got {count:.1f}, told by "
            f"{words[16]:.0f} bytes.\nUsual cause: a bucket is closed when it has exceeded the cap "
            "instead of before, or sizes are taken in elements.\nNext step: print the bytes of "
            "each bucket: 12 KiB, two gradients of float64."
        )


def beside_payload(run, payload):
    """Bytes that all hosts sent beside `payload` and headers. Acknowledgements are headers alone,
    and when they are sent is chance."""
    sent = sum(t.sent_bytes - HEADER_BYTES * t.sent_packets for t in run.traffic)
    return max(1, sent - payload)


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=2, slots=1)
@pytest.mark.fault(f"rate {LINK_MBIT}mbit on all")
@pytest.mark.needs("test_only_gradients_that_are_needed_travel")
def test_buckets_go_out_while_backward_runs(cluster, rng, measure):
    """Communication hides behind backward: together they take at most 1.5 times backward alone.

    The first layer's backward takes 0.7 s, and so do 8 MiB of gradients on these links. All of
    them but the first layer's own are there before.
    """
    parts = Parts([(1000,), *[(MIB // 16,)] * 16], stall_s=STALL_S)
    inputs = [{"x": rng.normal(size=(1, parts.total))} for _ in range(2)]
    with cluster.job(2, "8 MiB behind 0.7 s") as job:
        job.run([{} for _ in inputs], {"model": {**parts.shape, "seed": 6}, "cap_mb": 1.0})

        def once():
            params = {"orders": parts.natural(inputs), "gradients": False}
            return job.run(inputs, params).elapsed_s / STALL_S

        ratios = [once()]  # set by a sleep and a link, to which a busy machine adds little
        while min(ratios) > 1.5 and len(ratios) < 4:
            ratios.append(once())
        measure.at_most(
            "time against the backward alone",
            min(ratios),
            1.5,
            "x",
            else_="Usual cause: reductions begin when backward has ended, or buckets are filled "
            "from the first layer on, whose gradient comes last.\nNext step: launch a bucket from "
            "the hook that completes it, with async_op=True, and fill buckets in reverse order.",
        )


@pytest.mark.points(8)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_ranks_may_finish_gradients_in_any_order(cluster, rng):
    """Ranks whose backward visits the layers in different orders still average like with like.

    Collectives have no names: the first of one rank meets the first of all others.
    """
    parts = Parts([(50,)] * 6)
    inputs = [parts.batches(rng, 4) for _ in range(3)]
    orders = [[rng.permutation(6).tolist() for _ in range(4)] for _ in inputs]
    orders[0][0], orders[1][0] = [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]
    with cluster.job(3, "orders") as job:
        for cap_mb in (400 / MIB, 800 / MIB, 25.0):
            run = train(job, parts, inputs, orders, cap_mb=cap_mb)
            expect_gradients(
                run,
                parts,
                inputs,
                orders,
                cause="a bucket is sent, or filled, in the order in which gradients arrive, and "
                "that differs between ranks.",
                next_step="let bucket i go out only after bucket i-1, and give each parameter a "
                "fixed place in its bucket.",
            )


@pytest.mark.points(8)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_a_parameter_may_be_unused_on_one_rank(cluster, rng):
    """With find_unused_parameters, what a rank does not use counts as zero, and nobody hangs.

    What no rank has used keeps `.grad` None, so that an optimizer leaves it alone.
    """
    parts = Parts([(40,)] * 5)
    inputs = [parts.batches(rng, 3) for _ in range(3)]
    orders = [[[0, 1, 2, 3, 4], [1, 3, 4], [0, 4, 3]] for _ in inputs]
    orders[1] = [[0, 2, 4], [4], [0, 3]]
    orders[2] = [[3, 1, 0], [3, 1], [3]]
    with cluster.job(3, "unused") as job:
        for cap_mb in (320 / MIB, 25.0):
            run = train(job, parts, inputs, orders, cap_mb=cap_mb, find_unused=True)
            expect_gradients(
                run,
                parts,
                inputs,
                orders,
                cause="the mean is taken over the ranks that used the parameter, or a parameter "
                "that nobody used gets a gradient of zeros.",
                next_step="reduce one flag a parameter beside the gradients.",
            )


@pytest.mark.points(4)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_mistakes_are_named(cluster, rng):
    """A parameter that backward does not reach, though all were promised, is named.

    Without find_unused_parameters, backward() raises RuntimeError with the parameter's name, and
    nobody hangs. A cap of 0 raises ValueError.
    """
    parts = Parts([(40,)] * 4)
    inputs = [parts.batches(rng, 2) for _ in range(2)]
    missing = int(rng.integers(0, 4))
    orders = [[[i for i in range(4) if i != missing]] * 2 for _ in inputs]
    with cluster.job(2, "a mistake") as job:
        run = train(job, parts, inputs, orders, cap_mb=320 / MIB, may_raise=True)
        for rank, outputs in enumerate(run.outputs):
            said = str(outputs.get("raised", "nothing"))
            if f"parts.{missing}" not in said:
                raise Failed(
                    f"expected RuntimeError that names parts.{missing}, got {said!r} on rank "
                    f"{rank}.\nUsual cause: the gradient is taken for zero.\nNext step: note "
                    "in the hooks what came, and compare when backward ends."
                )
        bad = {"model": {**parts.shape, "seed": 6}, "bad_cap": True}
        run = job.run([{} for _ in range(2)], bad)
        for rank, outputs in enumerate(run.outputs):
            if str(output(outputs, "raised", rank)) != "ValueError":
                raise Failed(f"expected ValueError for bucket_cap_mb=0 on rank {rank}")


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=2, slots=1)
@pytest.mark.needs("test_only_gradients_that_are_needed_travel")
def test_accumulation_sends_once_per_window(cluster, rng, measure):
    """With k = 4 micro-batches to an update, a quarter of the bytes travel; gradients are sums.

    Within no_sync() nothing is sent at all, buffers included.
    """
    parts = Parts([(MIB // 16,), (MIB // 16,)])
    inputs = [parts.batches(rng, 8) for _ in range(2)]
    with cluster.job(2, "k = 4") as job:
        run = build_then_train(job, parts, inputs, accumulate=4, cap_mb=0.6)
        expect_gradients(
            run,
            parts,
            inputs,
            parts.natural(inputs),
            accumulate=4,
            cause="gradients are added up twice: in .grad by autograd, and in the bucket again.",
            next_step="copy .grad into the bucket once, in the backward that is reduced.",
        )
        measure.at_most(
            "bytes sent, against one reduction in 4 micro-batches",
            max(t.sent_bytes for t in run.traffic) / (2 * MIB),
            1.25,
            "x",
            else_="Usual cause: hooks do not ask whether they are within no_sync().\n"
            "Next step: let no_sync() set a flag that forward and hooks look at.",
        )
        pictures = make_digits(rng, [20, 20])
        job.run([{} for _ in range(2)], {"model": {"kind": "digits", "seed": 6}})
        run = job.run(pictures, {"never_sync": True})
        measure.at_most(
            "packets of 20 micro-batches within no_sync()",
            max(t.sent_packets for t in run.traffic),
            25,  # late acknowledgements of what went before
            "packets",
            else_="Usual cause: gradients wait, and buffers are still sent in every forward.\n"
            "Next step: ask in forward, too, whether this is within no_sync().",
        )


@pytest.mark.points(8)
@pytest.mark.needs("test_gradients_equal_one_process")
def test_ranks_may_have_fewer_batches(cluster, rng):
    """Within join(), gradients are averaged over the ranks that still have batches.

    Nobody hangs, and when all have left the block all ranks hold the parameters of the last.
    """
    parts = Parts([(30,)] * 4)
    with cluster.job(3, "uneven batches") as job:
        for steps in ([5, 3, 4], [1, 4, 4], [0, 2, 3]):
            inputs = [parts.batches(rng, count) for count in steps]
            orders = parts.natural(inputs)
            run = train(job, parts, inputs, orders, cap_mb=480 / MIB, join=True, state=True)
            expect_gradients(
                run,
                parts,
                inputs,
                orders,
                cause="the sum is divided by the size of the group, though some have left.",
                next_step="let all ranks agree at each forward on who still trains.",
            )
            start = state_of(model.build(seed=6, **parts.shape))["parameters"]
            moved = np.concatenate(
                [
                    sum(mean for _, part, mean in parts.windows(inputs, orders) if part == wanted)
                    for wanted in parts.learning
                ]
            )
            for rank, outputs in enumerate(run.outputs):
                expect_close(
                    output(outputs, "parameters", rank),
                    start - 0.125 * moved,
                    relative=EXACT,
                    where=f"in the parameters of rank {rank} after the block, batches {steps}",
                    cause="a rank that left early has missed the updates since.",
                    next_step="at the end of the block, broadcast from a rank that trained last.",
                )


@pytest.mark.points(6)
@pytest.mark.needs("test_buffers_follow_rank_0")
def test_digits_are_learned_as_by_one_process(cluster, rng, measure):
    """Four ranks learn handwritten digits exactly as one process does, while one is paused.

    80 steps of 4 x 16 images; node3 stands still for 0.3 s. Parameters are bit-identical on all
    ranks, and equal to those of one process that saw all images.
    """
    seed, rate = int(rng.integers(1, 1000)), 0.1
    inputs = make_digits(rng, [80] * 4)
    twin = OneProcess(seed, inputs, rate)
    with cluster.job(4, "digits") as job:
        params = {"model": {"kind": "digits", "seed": seed}, "rate": rate, "cap_mb": 0.01}
        # In a case of its own: what is slow about first steps is over when the pause begins.
        job.run(steps_of(inputs, 0, 20), {**params, "gradients": False})
        # Sleep alone takes 0.24 s, so that nobody is done then.
        params = {"state": True, "gradients": False, "sleep_s": 0.004}
        pause = cluster.timeline("from 0.1s to 0.4s pause node3")
        run = job.run(steps_of(inputs, 20, 80), params, output_bytes=MIB, during=pause)
    found = [output(outputs, "parameters", rank) for rank, outputs in enumerate(run.outputs)]
    expect_ranks_agree(
        found,
        name="parameters",
        where="after 80 steps",
        cause="each rank finishes the mean by itself, in its own order.",
        next_step="take what the reduction gives, and divide it by the same number everywhere.",
    )
    want = state_of(twin.module)["parameters"]
    expect_close(found[0], want, relative=SAME_TRAINING, where="in the parameters after 80 steps")
    pause.must_have_fired()  # after the parameters: who skips steps ends before the pause does
    measure.note("loss at the first step", twin.losses[0])
    measure.note("loss at the last step", twin.losses[-1])
    measure.note("digits recognised that were held out", 100 * recognised(twin.module), "%")


def steps_of(inputs, start, end):
    return [{name: array[start:end] for name, array in rank.items()} for rank in inputs]


def recognised(module):
    """Share of the held-out digits that the model names rightly."""
    _, held_out = digits()
    with torch.no_grad():
        scores = module.eval().scores(torch.from_numpy(held_out.images.astype(np.float64)))
    return (scores.argmax(1).numpy() == held_out.labels).mean()
