"""Random numbers that a learner cannot foresee and an instructor can repeat."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seed:
    """The secret of one grading; every check draws from its own stream of it."""

    value: int

    @classmethod
    def fresh(cls) -> Seed:
        return cls(secrets.randbits(63))

    def stream(self, name: str) -> np.random.Generator:
        """A generator for `name`; the same seed and name give the same numbers."""
        digest = hashlib.blake2b(f"{self.value}:{name}".encode(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest))
