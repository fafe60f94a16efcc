# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""torch.autocast casts, .grad adds up in float32, and the sum is the vote: it has the same bits on
every rank, and inf in any share is inf in it."""

import math

import torch
import torch.distributed as dist


class DynamicLossScaler:
    """The scale is the power `init * growth^i * backoff^j`, clamped at each change."""

    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        min_scale=1.0,
        max_scale=2.0**24,
    ):
        for name, is_right in {
            "min_scale <= init_scale <= max_scale": min_scale <= init_scale <= max_scale,
            "min_scale > 0": min_scale > 0,
            "growth_factor > 1": growth_factor > 1,
            "0 < backoff_factor < 1": 0 < backoff_factor < 1,
            "growth_interval >= 1": growth_interval >= 1,
        }.items():
            if not is_right:
                raise ValueError(f"{name} does not hold")
        self.scale, self.left, self.interval = float(init_scale), growth_interval, growth_interval
        self.factors = {True: backoff_factor, False: growth_factor}
        self.bounds = min_scale, max_scale

    def update(self, found_overflow):
        self.left -= 1
        if found_overflow or self.left == 0:
            low, high = self.bounds
            wanted = self.scale * self.factors[bool(found_overflow)]
            self.scale, self.left = min(high, max(low, wanted)), self.interval


def clip_global_norm(grads, max_norm):
    largest = max((g.abs().max().item() for g in grads if g.numel()), default=0.0)
    if not largest:
        return 0.0
    # By the largest number first: what is squared is at most 1.
    norm = largest * math.sqrt(sum(((g / largest) ** 2).sum().item() for g in grads))
    if norm > max_norm:
        torch._foreach_mul_(list(grads), max_norm / norm)
    return norm


def train_step(
    model, optimizer, scaler, micro_batches, group, *, compute_dtype, wire_dtype, max_norm
):
    optimizer.zero_grad()
    low = compute_dtype != torch.float32
    for batch in micro_batches:
        batch = [t.to(compute_dtype) if t.is_floating_point() else t for t in batch]
        device = next(model.parameters()).device.type
        with torch.autocast(device, dtype=compute_dtype if low else None, enabled=low):
            loss = model(*batch)
        (loss * (scaler.scale / len(micro_batches))).backward()
    params = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.grad.flatten() for p in params])
    wire = flat.div_(dist.get_world_size(group)).to(wire_dtype)
    dist.all_reduce(wire, group=group, async_op=True).wait()
    overflow = not bool(torch.isfinite(wire).all())
    if not overflow:
        offset = 0
        for p in params:
            p.grad.copy_(wire[offset : offset + p.numel()].view_as(p))
            p.grad /= scaler.scale
            offset += p.numel()
        clip_global_norm([p.grad for p in params], max_norm)
        optimizer.step()
    scaler.update(overflow)
    return not overflow
