"""Cases of problem 20: what a training run is given, and what must come of it.

The twin goes through the same steps in one process. It is told who was a member in which step and
works with the momentum of Goyal et al.'s equation 9, in which no rate is contained.
"""

from dataclasses import asdict, dataclass, field

import model
import numpy as np

from grader.compare import expect_close, explain, output
from grader.ended import Failed

LOGS = "return, for each committed step, the members that took part in it, on every one of them."


@dataclass(frozen=True)
class Training:
    """A case. gradient: "counting", "bowl" or "clicks". tables: inputs that the gradient needs."""

    work: model.Work
    gradient: str
    start: np.ndarray
    tables: dict = field(default_factory=dict)

    def inputs(self, ranks):
        return [{"start": self.start, **self.tables}] * ranks

    def params(self, **more):
        return {"work": asdict(self.work), "gradient": self.gradient, **more}

    def planned(self, step):
        """Who should be a member in a step, if nobody died."""
        return [ranks for first, ranks in self.work.plan if first <= step][-1]

    def of(self, params, numbers):
        if self.gradient == "counting":
            return model.counting_gradient(params, numbers)
        compute = {"bowl": model.bowl_gradient, "clicks": model.click_gradient}[self.gradient]
        return compute(params, numbers, *self.tables.values())

    def twin(self, members=None):
        """States of one process: before each step, and after the last. members: of each step."""
        work, params = self.work, self.start.copy()
        momentum, rate, states = np.zeros_like(params), 0.0, []
        for epoch in range(work.epochs):
            order, position = work.order(epoch), 0
            while position < work.samples:
                step = len(states)
                states.append((params.copy(), rate * momentum))
                if members is not None and step >= len(members):
                    return states
                workers = len(self.planned(step) if members is None else members[step])
                batch = order[position : position + workers * work.per_rank]
                rate = work.rate * len(batch) / work.base_batch
                momentum = work.momentum * momentum + self.of(params, batch) / len(batch)
                params, position = params - rate * momentum, position + len(batch)
        return [*states, (params, rate * momentum)]


def draw_counting(rng, plan, epochs=1, samples=240, per_rank=4, size=0):
    """A case whose final parameters say how often each sample was consumed."""
    start = rng.integers(-1000, 1000, max(size, epochs * samples)).astype(np.float64)
    seed = int(rng.integers(1 << 30))
    return Training(
        model.Work(epochs, samples, per_rank, 8, 8.0, 0.0, plan, seed), "counting", start
    )


def draw_bowl(rng, plan, epochs=2, samples=90, per_rank=3, size=12):
    """A case in which a wrong rate or momentum shows in every parameter."""
    tables = {
        "curvature": rng.uniform(0.2, 1.0, (samples, size)),
        "centre": rng.uniform(-100, 100, (samples, size)),
    }
    start = rng.uniform(-100, 100, size)
    seed = int(rng.integers(1 << 30))
    return Training(
        model.Work(epochs, samples, per_rank, 6, 0.04, 0.9, plan, seed), "bowl", start, tables
    )


def must_count_once(case, run, ranks):
    """Raise Failed unless every sample is in the parameters of `ranks` exactly once."""
    for rank in ranks:
        counts = case.start - output(run.outputs[rank], "params", rank)
        counts = counts[: case.work.epochs * case.work.samples]
        wrong = np.flatnonzero(~(np.abs(counts - 1) < 1e-6))
        if wrong.size:
            epoch, sample = divmod(int(wrong[0]), case.work.samples)
            raise Failed(
                explain(
                    "each sample once in its epoch",
                    f"sample {sample} of epoch {epoch} {counts[wrong[0]]:.3g} times",
                    f"in the parameters of rank {rank} ({wrong.size} of "
                    f"{case.work.epochs * case.work.samples} samples are wrong)",
                    "a step redone although it had counted, or not redone; a position that a "
                    "resize sets back or on; shares fixed for a whole epoch.",
                    "move the position only when a step is committed, on all members alike.",
                )
            )


def members_of_steps(case, run, ranks, lost=()):
    """Members of each step, as the logs of all `ranks` that live have it. Raises Failed where
    they contradict each other or the plan."""
    said = {}
    for rank in set(ranks) - set(lost):
        steps = output(run.outputs[rank], "steps", rank).tolist()
        bits = output(run.outputs[rank], "members", rank).tolist()
        for step, members in zip(steps, bits, strict=True):
            first, other = said.setdefault(step, (members, rank))
            if members != first:
                got = f"{_ranks(members)} on rank {rank}, {_ranks(first)} on rank {other}"
                _wrong("one set of members", got, f"for step {step}", "a resize on some ranks only")
    if sorted(said) != list(range(len(said))):
        _wrong("steps 0, 1, 2 ...", f"{sorted(said)[:5]} ...", "in the logs", "a step miscounted")
    gone = set()
    for step in range(len(said)):
        members, planned = set(_ranks(said[step][0])), set(case.planned(step))
        gone |= planned - members
        if not members <= planned or not gone <= set(lost) or members & gone:
            want = f"{sorted(planned)}, less the dead of {sorted(lost)}"
            _wrong(want, sorted(members), f"as members of step {step}", "the plan, or a wrong rank")
    for rank in set(ranks) - set(lost):
        steps = set(output(run.outputs[rank], "steps", rank).tolist())
        own = {step for step in said if rank in _ranks(said[step][0])}
        if steps != own:
            step = min(steps ^ own)
            _wrong(f"{len(own)} steps", len(steps), f"in the log of rank {rank}", f"step {step}")
    return [tuple(_ranks(said[step][0])) for step in range(len(said))]


def must_equal_twin(case, run, members, ranks, cause=""):
    """Raise Failed unless each rank ends where the twin stands after that rank's last step."""
    states = case.twin(members)
    for rank in ranks:
        took = [step for step, of_step in enumerate(members) if rank in of_step]
        last = took[-1] + 1 if took else 0
        for name, want in zip(("params", "velocity"), states[last], strict=True):
            expect_close(
                output(run.outputs[rank], name, rank),
                want,
                relative=1e-9,
                where=f"in the {name} of rank {rank} after step {last - 1} (one process goes "
                f"through the same steps; {len(members)} in all)",
                cause=cause
                or "the rate, which follows B; the velocity, which contains the rate "
                "it was made with; a state that not every member has.",
                next_step="compare params and velocity after each of the first three steps, then "
                "after each of the first three that follow a resize.",
            )


def longest_pause(run, rank):
    """Seconds between two calls of gradient on a rank, the longest. Its own clock."""
    times = output(run.outputs[rank], "times", rank)
    return float(np.diff(times).max()) if len(times) > 1 else 0.0


def _ranks(bits):
    return [rank for rank in range(63) if bits >> rank & 1]


def _wrong(want, got, where, cause):
    raise Failed(explain(str(want), str(got), where, cause, LOGS))
