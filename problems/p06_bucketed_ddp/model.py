"""The models that ranks train and checks compute again: small, and awkward on purpose."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def build(kind: str, seed: int, rank: int = 0, **shape) -> nn.Module:
    """A model of `kind`, "dot" or "digits", with the weights and buffers that `rank` starts from.

    Ranks start from different ones, as processes do that nobody seeded alike.
    """
    torch.manual_seed(1000 * seed + rank)
    module = {"dot": Dot, "digits": Digits}[kind](**shape)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.randn_like(buffer), alpha=0.3)
        else:
            buffer.random_(100)
    return module


class Dot(nn.Module):
    """loss = p_0 . x_0 + p_1 . x_1 + ... over the parts named in `order`.

    So the gradient of p_i is x_i, whatever the weights are. Backward reaches the parts in reverse
    of `order`, and those that `order` leaves out not at all.

    shapes: of each part. tied: pairs (i, j): part j is the very parameter that part i is. frozen:
    parts that do not learn. single: parts in float32; all others are float64. stall_s: how long
    the backward of part 0 takes.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        tied: Sequence[tuple[int, int]] = (),
        frozen: Sequence[int] = (),
        single: Sequence[int] = (),
        stall_s: float = 0.0,
    ) -> None:
        super().__init__()
        same = {j: i for i, j in tied}
        parts: list[nn.Parameter] = []
        for number, size in enumerate(shapes):
            dtype = torch.float32 if number in single else torch.float64
            fresh = nn.Parameter(torch.randn(tuple(size), dtype=dtype), number not in frozen)
            parts.append(parts[same[number]] if number in same else fresh)
        self.parts = nn.ParameterList(parts)
        self.stall_s = stall_s

    def forward(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """x: one number for each number in the parts, tied ones counted twice."""
        pieces = x.split([part.numel() for part in self.parts])
        loss = x.new_zeros(())
        for number in order:
            part = self.parts[number]
            if number == 0 and self.stall_s:
                part = _Stall.apply(part, self.stall_s)
            loss = loss + (part.reshape(-1) * pieces[number].to(part.dtype)).sum()
        return loss


class _Stall(torch.autograd.Function):
    """The identity, whose backward takes its time."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class RunningNorm(nn.Module):
    """Takes the running mean away and divides by the running spread; then updates both.

    What it computes in training depends on its buffers, so ranks whose buffers differ compute
    different models.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width), persistent=False)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = (x - self.mean) / (0.1 + self.spread.abs())
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.spread.lerp_(x.std(0), 0.1)
                self.updates += 1
        return y


class Digits(nn.Module):
    """A classifier of 8 x 8 images in float64, with all that trips up a wrapper: a frozen layer, a
    weight used twice, buffers that count, and a parameter without dimensions."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.project = nn.Linear(64, width, bias=False)
        self.project.weight.requires_grad_(False)
        self.first = nn.Linear(width, width)
        self.norm = RunningNorm(width)
        self.second = nn.Linear(width, width)
        self.again = nn.Linear(width, width)
        self.again.weight = self.second.weight
        self.out = nn.Linear(width, 10)
        self.sharpness = nn.Parameter(torch.tensor(1.0))
        self.double()

    def scores(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(self.project(x))))
        h = torch.tanh(self.again(torch.tanh(self.second(h))) + h)
        return self.sharpness * self.out(h)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.scores(x), y)
