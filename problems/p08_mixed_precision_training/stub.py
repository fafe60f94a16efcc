"""One optimizer step in 16 bits on n ranks: loss scaling, one vote, one mean, one clip."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class DynamicLossScaler:
    """The factor that keeps small 16-bit gradients above zero, as large as overflow lets it be.

    `scale` is the factor now, a float. Powers of two lose no digits.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
    ) -> None:
        """Start at `init_scale`.

        Raises ValueError unless 0 < min_scale <= init_scale <= max_scale, growth_factor > 1,
        0 < backoff_factor < 1 and growth_interval >= 1.
        """
        raise NotImplementedError

    def update(self, found_overflow: bool) -> None:
        """Tell what came of one optimizer step; adapt `scale` for the next.

        Overflow: scale x backoff_factor, but not below min_scale, and the count of good steps
        starts again from 0. No overflow: one more good step; with the growth_interval-th, scale x
        growth_factor, but not above max_scale, and the count starts again.
        """
        raise NotImplementedError


def clip_global_norm(grads: Sequence[torch.Tensor], max_norm: float) -> float:
    """Scale all `grads` in place so that their common Euclidean norm is at most `max_norm`.

    grads: finite float32 tensors of any shape on one device, 0-dimensional and empty ones included.
    Magnitudes from 1e-30 to 1e30 occur, so squares do not fit into float32.
    max_norm: above 0; may be inf.

    All are multiplied by max_norm / norm when norm > max_norm, and none is changed otherwise.
    Returns the norm before clipping, 0.0 when all are zero.
    """
    raise NotImplementedError


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: DynamicLossScaler,
    micro_batches: Sequence[tuple[torch.Tensor, ...]],
    group: dist.ProcessGroup,
    *,
    compute_dtype: torch.dtype,
    wire_dtype: torch.dtype,
    max_norm: float,
) -> bool:
    """Make one optimizer step from the micro-batches of all ranks; return whether it was made.

    Every rank of `group` (1 or more; not always all of the job) calls this together, with the same
    parameters, the same scale and as many micro-batches, but its own data.

    model: parameters in float32 on one device, the *master weights*: they stay float32, and they
        stay the very objects that `optimizer` holds. Some may have requires_grad=False: leave those
        alone. The others are reached by every backward. No buffers. `model(*micro_batch)` returns
        the mean loss of a micro-batch, a float32 tensor without dimensions.
    micro_batches: 1 or more. Their floating-point tensors are float32 and enter the model in
        `compute_dtype`; others (labels) as they are.
    compute_dtype: torch.float32, torch.float16 or torch.bfloat16: forward and backward.
    wire_dtype: one of the same three: the type in which gradients travel. One mean a step, of as
        many bytes as one all-reduce of that type needs, whatever the number of micro-batches.
    max_norm: bound on the norm of the mean gradient, as in clip_global_norm.

    The gradient that the optimizer sees is the mean over all micro-batches of all ranks, as one
    process would compute it, then clipped. It is free of the loss scale. Micro-batches are added
    up in float32.

    When a gradient holds inf or NaN, on one rank or on several, as computed, as sent or as summed,
    *every* rank skips the step: parameters and the optimizer's state stay as they were, and False
    is returned. The next step starts afresh. Otherwise every rank makes it. `scaler.update` is
    called once a step, with the same argument on every rank.
    """
    raise NotImplementedError
