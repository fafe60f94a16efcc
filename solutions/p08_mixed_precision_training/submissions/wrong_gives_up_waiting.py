# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_partition_and_a_pause_change_nothing"
# says = "went on without what was late"
# ///
"""A sum or vote that takes longer than 0.1 s is replaced by the rank's own."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.func import functional_call


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
        sensible = 0 < min_scale <= init_scale <= max_scale and growth_factor > 1
        if not (sensible and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise ValueError("these settings make no sense")
        self.scale, self.good = float(init_scale), 0
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval
        self.low, self.high = min_scale, max_scale

    def update(self, found_overflow):
        if found_overflow:
            self.scale, self.good = max(self.low, self.scale * self.backoff), 0
            return
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = min(self.high, self.scale * self.growth), 0


def clip_global_norm(grads, max_norm):
    norm = sum((g.double() ** 2).sum().item() for g in grads) ** 0.5
    if norm > max_norm:
        for g in grads:
            g.mul_(max_norm / norm)
    return norm


def loss_of(model, batch, dtype):
    low = {name: p.to(dtype) for name, p in model.named_parameters()}
    batch = [t.to(dtype) if t.is_floating_point() else t for t in batch]
    return functional_call(model, low, tuple(batch))


def train_step(
    model, optimizer, scaler, micro_batches, group, *, compute_dtype, wire_dtype, max_norm
):
    params = [p for p in model.parameters() if p.requires_grad]
    for batch in micro_batches:
        (loss_of(model, batch, compute_dtype) * scaler.scale).backward()
    ranks = dist.get_world_size(group)
    mean = torch.cat([p.grad.reshape(-1) for p in params]) / len(micro_batches)
    wire = (mean / ranks).to(wire_dtype)
    late = wire.clone()
    work = dist.all_reduce(late, group=group, async_op=True)
    try:
        work.wait(timedelta(seconds=0.1))
        wire = late
    except RuntimeError:
        wire = mean.to(wire_dtype)
    overflow = (~wire.isfinite().all()).float()
    votes = overflow.clone()
    work = dist.all_reduce(votes, dist.ReduceOp.MAX, group=group, async_op=True)
    try:
        work.wait(timedelta(seconds=0.1))
        overflow = votes
    except RuntimeError:
        pass
    if overflow.item():
        optimizer.zero_grad()
        scaler.update(True)
        return False
    mean = wire.float() / scaler.scale
    clip_global_norm([mean], max_norm)
    for p, piece in zip(params, mean.split([p.numel() for p in params]), strict=True):
        p.grad.copy_(piece.view_as(p))
    optimizer.step()
    optimizer.zero_grad()
    scaler.update(False)
    return True
