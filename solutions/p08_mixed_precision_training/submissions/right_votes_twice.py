# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""A vote before the sum saves the sum when a rank has overflowed; one after it catches what the sum
itself did. A 16-bit twin of the model is kept from step to step, and sums go tensor by tensor."""

import copy
import weakref

import torch
import torch.distributed as dist

twins = weakref.WeakKeyDictionary()


class DynamicLossScaler:
    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        min_scale=1.0,
        max_scale=2.0**24,
    ):
        assert_right = [
            0 < min_scale <= init_scale <= max_scale,
            growth_factor > 1,
            0 < backoff_factor < 1,
            growth_interval >= 1,
        ]
        if not all(assert_right):
            raise ValueError(f"rule {assert_right.index(False)} of four does not hold")
        self.scale = float(init_scale)
        self.rules = self._rules(
            growth_factor, backoff_factor, growth_interval, min_scale, max_scale
        )
        next(self.rules)

    def _rules(self, up, down, interval, low, high):
        """A generator that is sent what came of each step."""
        while True:
            for _ in range(interval):
                if (yield):
                    self.scale = max(low, self.scale * down)
                    break
            else:
                self.scale = min(high, self.scale * up)

    def update(self, found_overflow):
        self.rules.send(found_overflow)


def clip_global_norm(grads, max_norm):
    total = torch.zeros((), dtype=torch.float64, device=grads[0].device)
    for g in grads:
        total += g.double().square().sum()
    norm = total.sqrt()
    factor = torch.clamp(max_norm / norm, max=1.0)  # NaN never: x / 0 is inf
    for g in grads:
        g.copy_(g * factor)
    return norm.item()


def anybody(flag, group, device):
    vote = torch.tensor([float(flag)], device=device)
    dist.all_reduce(vote, dist.ReduceOp.MAX, group=group)
    return vote.item() > 0


def twin_of(model, dtype):
    """The model in `dtype`, with the weights that the master has now."""
    if model not in twins or next(twins[model].parameters()).dtype != dtype:
        twins[model] = copy.deepcopy(model).to(dtype)
    pairs = zip(twins[model].parameters(), model.parameters(), strict=True)
    with torch.no_grad():
        for low, master in pairs:
            low.copy_(master)
    return twins[model]


def train_step(
    model, optimizer, scaler, micro_batches, group, *, compute_dtype, wire_dtype, max_norm
):
    twin, scale = twin_of(model, compute_dtype), scaler.scale
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    pairs = [(master, low) for master, low in pairs if master.requires_grad]
    sums = [torch.zeros_like(master) for master, _ in pairs]
    for batch in micro_batches:
        batch = [t.to(compute_dtype) if t.is_floating_point() else t for t in batch]
        (twin(*batch) * scale).backward()
        for total, (_, low) in zip(sums, pairs, strict=True):
            total += low.grad
            low.grad = None
    device, divisor = sums[0].device, len(micro_batches) * dist.get_world_size(group)
    wires = [(total / divisor).to(wire_dtype) for total in sums]
    overflow = anybody(not all(w.isfinite().all() for w in wires), group, device)
    if not overflow:
        for work in [dist.all_reduce(w, group=group, async_op=True) for w in wires]:
            work.wait()
        overflow = anybody(not all(w.isfinite().all() for w in wires), group, device)
    if not overflow:
        grads = [w.float() / scale for w in wires]
        clip_global_norm(grads, max_norm)
        for (master, _), grad in zip(pairs, grads, strict=True):
            master.grad = grad
        optimizer.step()
    scaler.update(overflow)
    return not overflow
