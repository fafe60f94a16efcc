"""What a plan is made from and made of. Driver, checks and submission all use these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STRATEGIES = ("data", "column", "row")


@dataclass(frozen=True)
class Layer:
    """y = x W^T + b, with x of shape (batch, in_features) and y of (batch, out_features).

    dtype_bytes: bytes of one number. bias: whether there is a b. whole_output: whether the next
    layer needs all of y on every rank; if not, y stays where the strategy leaves it.
    """

    in_features: int
    out_features: int
    batch: int
    dtype_bytes: int = 4
    bias: bool = True
    whole_output: bool = False


@dataclass(frozen=True)
class Cluster:
    """ranks: one to a host. bytes_per_s: of a host's link, each way at once. latency_s: one way.
    memory_bytes: what one rank has for this layer."""

    ranks: int
    bytes_per_s: float
    latency_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Plan:
    """strategy: one of STRATEGIES. For one step, forward and backward: sent_bytes that a rank
    sends, seconds that communication takes, memory_bytes of the rank that needs most."""

    strategy: str
    sent_bytes: float
    seconds: float
    memory_bytes: int


class DoesNotFit(Exception):
    """No strategy fits. needs: memory in bytes that each strategy would take. limit: what there is.

    raise DoesNotFit({"data": 9000, "column": 5000, "row": 6000}, 4096)
    """

    def __init__(self, needs: Mapping[str, int], limit: int) -> None:
        self.needs, self.limit = dict(needs), limit
        least = min(self.needs, key=self.needs.__getitem__)
        super().__init__(
            f"a rank has {limit:,} bytes, and the smallest strategy, {least}, needs "
            f"{self.needs[least]:,} ({self.needs[least] / max(limit, 1):.1f} times as much)"
        )
