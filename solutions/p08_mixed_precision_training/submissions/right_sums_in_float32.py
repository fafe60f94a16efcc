# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""Every rank gathers its nth of all shares in 16 bits, adds them in float32, and sends the mean
round in 16 bits. Nothing need be divided before the sum, which float32 holds. As many bytes.
"""

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
        if not 0 < min_scale <= init_scale <= max_scale:
            raise ValueError("the scales are out of order")
        if growth_factor <= 1 or not 0 < backoff_factor < 1 or growth_interval < 1:
            raise ValueError("the factors or the interval make no sense")
        self.scale, self.since = float(init_scale), 0
        self.up, self.down, self.interval = growth_factor, backoff_factor, growth_interval
        self.min_scale, self.max_scale = min_scale, max_scale

    def update(self, found_overflow):
        self.since = 0 if found_overflow else self.since + 1
        factor = self.down if found_overflow else 1.0
        if self.since == self.interval:
            self.since, factor = 0, self.up
        self.scale = min(self.max_scale, max(self.min_scale, self.scale * factor))


def clip_global_norm(grads, max_norm):
    everything = torch.cat([g.reshape(-1).double() for g in grads])
    norm = everything.norm().item()
    for g in grads:
        g *= min(1.0, max_norm / norm) if norm else 1.0
    return norm


class Halves:
    """16-bit copies of the parameters. Each backward leaves in their .grad what it found."""

    def __init__(self, model, dtype):
        self.named = {
            name: p.detach().to(dtype).requires_grad_(p.requires_grad)
            for name, p in model.named_parameters()
        }
        self.learning = [p for p in self.named.values() if p.requires_grad]

    def take(self):
        found = torch.cat([p.grad.reshape(-1).float() for p in self.learning])
        for p in self.learning:
            p.grad = None
        return found


def mean_over_ranks(share, group, wire_dtype):
    """(vector, overflow): the mean of all ranks' shares, of which each rank adds up an nth."""
    ranks = dist.get_world_size(group)
    length = -(-len(share) // ranks)
    padded = torch.zeros(length * ranks, dtype=wire_dtype, device=share.device)
    padded[: len(share)] = share
    pieces = torch.empty_like(padded)
    dist.all_to_all_single(pieces, padded, group=group)
    mine = pieces.view(ranks, length).float().mean(0).to(wire_dtype)
    vote = (~torch.isfinite(mine).all()).to(torch.int32)
    dist.all_reduce(vote, group=group)
    if vote > 0:
        return None, True
    dist.all_gather_into_tensor(pieces, mine, group=group)
    return pieces[: len(share)].float(), False


def train_step(
    model, optimizer, scaler, micro_batches, group, *, compute_dtype, wire_dtype, max_norm
):
    halves, share = Halves(model, compute_dtype), 0
    for batch in micro_batches:
        batch = tuple(t.to(compute_dtype) if t.is_floating_point() else t for t in batch)
        (functional_call(model, halves.named, batch) * scaler.scale).backward()
        share = share + halves.take() / len(micro_batches)
    mean, overflow = mean_over_ranks(share, group, wire_dtype)
    if not overflow:
        mean /= scaler.scale
        clip_global_norm([mean], max_norm)
        learning = [p for p in model.parameters() if p.requires_grad]
        torch.nn.utils.vector_to_parameters(mean, learning_grads(learning))
        optimizer.step()
    scaler.update(overflow)
    return not overflow


def learning_grads(parameters):
    """The .grad of each, made where there is none."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return [p.grad for p in parameters]
