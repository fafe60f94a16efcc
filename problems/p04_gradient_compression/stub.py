"""Average gradients with 2 bytes a value, train with 1 bit a value, and say which paid off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist


class Fp16Allreduce:
    """Means over the ranks with 2 bytes a value on the wire."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        """process_group: the ranks that take part. Communicate over it."""
        raise NotImplementedError

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace every tensor, in place, by its mean over the ranks.

        tensors: float32, of any shape, contiguous, without dimensions or empty ones included; as
            many and of the same shapes on every rank. On the device of the group.

        With x_r the value on rank r of n, every element of the result is within

            mean_r |x_r| / 512  +  largest |value| of that tensor on any rank / 2**30

        of the exact mean: four roundings to float16, and nothing else. Whatever a tensor's
        magnitude is, from 1e-30 to 1e30, and whatever the other tensors' are. The result is the
        same, bit for bit, on every rank.

        Where a rank has an infinity or a NaN, every rank gets one of the two there. Other tensors
        are as if it were not.

        Raises TypeError when a tensor is not float32, before anything is sent.
        """
        raise NotImplementedError


class OneBitAdam:
    """Adam that sends full gradients for `warmup_steps` steps, and signs from then on.

    Each rank sets `.grad` of its parameters from its own batch, then calls `step()`. Every rank
    must end each step with the same parameters, bit for bit.

    Every parameter is flattened and cut into n chunks as by `numpy.array_split` (the first ones
    one element longer; some empty when there are fewer elements than ranks). Rank j is the server
    of chunk j of every parameter. `compress(x)`, applied to one chunk, keeps one bit a value and
    one float32 for all:

        compress(x) = s where x >= 0, otherwise -s;   s = mean(|x|), the l1 norm over the length

    Steps t = 1, 2, ..., with g_r the gradient of rank r, b1 and b2 the betas. m, v start at 0.

        t <= warmup_steps:
            g = mean over ranks of g_r                    (float32 on the wire)
            m = b1 m + (1 - b1) g
            v = b2 v + (1 - b2) g^2

        t > warmup_steps:
            on rank r      u = b1 m + (1 - b1) g_r + e_r  (m: the same on all ranks)
                           c_r = compress(u),  e_r = u - c_r       sent to the chunk's server
            on the server  w = mean over ranks of c_r + d
                           c = compress(w),    d = w - c           sent to all ranks
                           m = c
            v stays what it was after step warmup_steps.

        always:
            m^ = m / (1 - b1^t)
            v^ = v / (1 - b2^min(t, warmup_steps))
            parameter -= lr m^ / (sqrt(v^) + eps)    where v > 0; elsewhere it stays as it is

    e_r is as long as all parameters, d as long as this rank's chunks; both start at 0. A value
    whose v is 0 has had no gradient in warm-up: it has no step size, and compress() would give it
    the others' scale.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        process_group: dist.ProcessGroup,
        lr: float,
        warmup_steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """params: float32 parameters with the same values on every rank; of any shape, also
            without dimensions, empty, or with fewer elements than there are ranks.

        Raises ValueError when there are no parameters, when lr is not above 0, or when
        warmup_steps is below 1: a variance that nobody measured cannot be frozen.
        """
        raise NotImplementedError

    def step(self) -> None:
        """One step, collective. A parameter whose `.grad` is None counts as having zeros."""
        raise NotImplementedError


def convergence_report(
    runs: Mapping[str, Sequence[Mapping[str, float]]], target_auc: float, baseline: str
) -> dict[str, Any]:
    """Which run reaches the target with the fewest bytes.

    runs: name -> points in the order of training, each {"bytes": sent by a rank since the start,
        "loss": ..., "auc": ...}. A NaN in "auc" is a model that has diverged, hence below any
        target. baseline: name of the run that others are compared with.

    Returns a dict of plain values:
        "bytes_to_target": {name: bytes of the first point from which on the AUC is never below
            target_auc again, or None}. A curve that touches the target and falls has not reached
            it.
        "winner": name with the fewest of those (the first of several in alphabetical order), or
            None when no run has any
        "saving": {name: bytes_to_target of the baseline / that of the run, or None where either
            is None}
        "final": {name: the last point, as a dict with "bytes", "loss", "auc"}

    Raises ValueError, naming the run, when a run has no points, when its bytes fall from one point
    to the next, or when there is no run called `baseline`.
    """
    raise NotImplementedError
