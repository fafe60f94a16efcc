"""The models that ranks train. What they compute is simple enough for a check to know it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def build(kind: str, **shape) -> nn.Module:
    """A model of `kind`, "dot" or "digits"."""
    return {"dot": Dot, "digits": Digits}[kind](**shape)


class Dot(nn.Module):
    """loss = f_0 p_0 . x_0 + f_1 p_1 . x_1 + ...: the gradient of part i is f_i x_i, whatever p is.

    shapes: of the parts. factors: f_i, powers of two; 1 where there are none. frozen: parts that do
    not learn. Parts start at zero. Sums are in float32; gradients leave in the parameters' type.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        factors: Sequence[float] = (),
        frozen: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.parts = nn.ParameterList(
            nn.Parameter(torch.zeros(tuple(shape)), i not in frozen)
            for i, shape in enumerate(shapes)
        )
        self.factors = list(factors) or [1.0] * len(self.parts)

    def forward(self, x: Tensor) -> Tensor:
        """x: one number for each number in the parts."""
        pieces = x.split([part.numel() for part in self.parts])
        loss = torch.zeros((), device=x.device)
        for part, piece, factor in zip(self.parts, pieces, self.factors, strict=True):
            loss = loss + factor * (part.reshape(-1).float() * piece.float()).sum()
        return loss


class Digits(nn.Module):
    """A classifier of 8 x 8 images with one hidden layer; its loss is computed in float32."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, width)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.out(torch.tanh(self.hidden(x)))
        return nn.functional.cross_entropy(scores.float(), y)
