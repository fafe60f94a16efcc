"""Handwritten digits: 1,797 real images of 8 x 8 pixels (Alpaydin and Kaynak, UCI, 1998)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Digits:
    """images: (n, 64) float32 from 0 to 1. labels: (n,) int64 from 0 to 9."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Digits:
        return Digits(self.images[start:stop], self.labels[start:stop])


@cache
def digits() -> tuple[Digits, Digits]:
    """1,500 images to train on and 297 to test with, in one fixed random order."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    whole = Digits((data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int64))
    return whole.part(0, 1500), whole.part(1500, len(whole))
