"""One optimizer step in 16 bits on n ranks: loss scaling, one vote, one mean, one clip.

The gradient lives in one flat float32 vector a rank. What is done to it, in this order:

    add up micro-batches (scaled, float32)  ->  divide by micro-batches x ranks  ->  cast for the
    wire  ->  sum  ->  vote  ->  float32, unscale  ->  clip  ->  optimizer  ->  scaler

Each place is taken for a reason. Dividing comes before the sum, so that the sum fits where the
mean does; unscaling comes after it, because the scale is what keeps small numbers from vanishing
on the wire; the vote is on the sum, which shows every overflow there was; clipping sees what one
process would see; and the scale changes when nobody needs the old one any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call


class DynamicLossScaler:
    """The factor that keeps small 16-bit gradients above zero; see stub.py."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
    ) -> None:
        if not 0 < min_scale <= init_scale <= max_scale:
            raise ValueError(
                f"scales are min {min_scale:g}, init {init_scale:g}, max {max_scale:g}; "
                "right is 0 < min_scale <= init_scale <= max_scale"
            )
        if not growth_factor > 1:
            raise ValueError(f"growth_factor = {growth_factor}; it must be above 1")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"backoff_factor = {backoff_factor}; it must be between 0 and 1")
        if growth_interval < 1:
            raise ValueError(f"growth_interval = {growth_interval}; it counts steps, 1 or more")
        self.scale = float(init_scale)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._good_steps = growth_interval, 0
        self._min_scale, self._max_scale = min_scale, max_scale

    def update(self, found_overflow: bool) -> None:
        if found_overflow:
            self.scale = max(self._min_scale, self.scale * self._backoff_factor)
            self._good_steps = 0
            return
        self._good_steps += 1
        if self._good_steps == self._growth_interval:
            self.scale = min(self._max_scale, self.scale * self._growth_factor)
            self._good_steps = 0


def clip_global_norm(grads: Sequence[Tensor], max_norm: float) -> float:
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in grads]
    norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: DynamicLossScaler,
    micro_batches: Sequence[tuple[Tensor, ...]],
    group: dist.ProcessGroup,
    *,
    compute_dtype: torch.dtype,
    wire_dtype: torch.dtype,
    max_norm: float,
) -> bool:
    masters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradient = _accumulate(model, masters, scaler.scale, micro_batches, compute_dtype)
    wire = (gradient / (len(micro_batches) * dist.get_world_size(group))).to(wire_dtype)
    dist.all_reduce(wire, group=group)
    overflow = _anybody_found_overflow(wire, group)
    if not overflow:
        gradient.copy_(wire).div_(scaler.scale)
        clip_global_norm([gradient], max_norm)
        pieces = gradient.split([p.numel() for p in masters.values()])
        for parameter, piece in zip(masters.values(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
        optimizer.zero_grad()
    scaler.update(overflow)
    return not overflow


def _accumulate(
    model: torch.nn.Module,
    masters: dict[str, Tensor],
    scale: float,
    micro_batches: Sequence[tuple[Tensor, ...]],
    dtype: torch.dtype,
) -> Tensor:
    """The scaled gradients of all micro-batches, added up in one float32 vector."""
    # Cast once a step. A cast outside autograd makes the copies leaves, so their gradients arrive
    # in 16 bits as on any accelerator; frozen parameters are cast and never differentiated.
    copies = {
        name: p.detach().to(dtype).requires_grad_(p.requires_grad)
        for name, p in model.named_parameters()
    }
    leaves = [copies[name] for name in masters]
    total = torch.zeros(sum(p.numel() for p in leaves), device=leaves[0].device)
    for micro_batch in micro_batches:
        batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in micro_batch)
        loss = functional_call(model, copies, batch)
        found = torch.autograd.grad(loss * scale, leaves)
        total += torch.cat([g.reshape(-1) for g in found])
    return total


def _anybody_found_overflow(total: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether any rank has inf or NaN in the sum. Collective: one byte a rank.

    The sum is the place to look: it holds what overflowed in a backward, in the cast to the wire's
    type, or on the way, since no finite number makes inf or NaN finite again. A vote before it
    misses the third kind: four ranks with 40,000 each are fine one by one.
    """
    flag = torch.isfinite(total).all().logical_not().to(torch.uint8)
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag)
