"""What one direction of one path does to packets: a checked, immutable set of netem settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

MAX_DELAY_MS = 10_000.0
MAX_JITTER_MS = 2_000.0
MIN_RATE_MBIT = 0.01
MAX_RATE_MBIT = 30_000.0
MAX_LIMIT_PACKETS = 100_000_000
NETEM_DEFAULT_LIMIT = 1_000
_UNSHAPED_MBIT = 10_000.0
_FULL_PACKET_BYTES = 1_500


def _refuse(owner: str, field: str, value: object, valid: str) -> ValueError:
    return ValueError(f"{owner}.{field} is {value!r}; valid: {valid}")


def _check_number(
    owner: str, field: str, value: Any, bounds: tuple[float, float], unit: str
) -> None:
    low, high = bounds
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        raise _refuse(owner, field, value, f"a number from {low:g} to {high:g} ({unit})")


@dataclass(frozen=True)
class GilbertElliott:
    """Loss in bursts: a two-state chain that takes one step a packet. All values in percent.

    Raises ValueError when a value lies outside 0 to 100, or when neither state can be left.
    """

    p_pct: float
    """Chance of going from the good state to the bad one."""
    r_pct: float
    """Chance of going from the bad state back to the good one."""
    bad_loss_pct: float = 100.0
    """Loss in the bad state (1-h in tc's words)."""
    good_loss_pct: float = 0.0
    """Loss in the good state (1-k in tc's words)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number("gemodel", field.name, getattr(self, field.name), (0, 100), "percent")
        if self.p_pct + self.r_pct == 0:
            raise _refuse("gemodel", "p_pct", self.p_pct, "above 0 when r_pct is 0")

    @property
    def mean_loss_pct(self) -> float:
        """Long-run loss in percent."""
        bad = self.p_pct / (self.p_pct + self.r_pct)
        return bad * self.bad_loss_pct + (1 - bad) * self.good_loss_pct


@dataclass(frozen=True)
class Netem:
    """Faults of one direction of one path. The default changes nothing.

    Raises ValueError naming the field, the value and the valid range.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Spread around the delay, uniform over delay +- jitter. Without a rate it reorders packets."""
    loss_pct: float = 0.0
    gemodel: GilbertElliott | None = None
    duplicate_pct: float = 0.0
    corrupt_pct: float = 0.0
    """Packets in which one random bit is flipped."""
    reorder_pct: float = 0.0
    """Packets that are sent at once and so overtake the delayed ones."""
    rate_mbit: float | None = None
    """Bytes on the wire, Ethernet header included, in units of 10^6 bit/s."""
    limit_packets: int | None = None
    """Queue length; None computes it from rate and delay (see `queue_limit`)."""

    def __post_init__(self) -> None:
        for name in ("loss_pct", "duplicate_pct", "corrupt_pct", "reorder_pct"):
            _check_number("Netem", name, getattr(self, name), (0, 100), "percent")
        _check_number("Netem", "delay_ms", self.delay_ms, (0, MAX_DELAY_MS), "milliseconds")
        _check_number("Netem", "jitter_ms", self.jitter_ms, (0, MAX_JITTER_MS), "milliseconds")
        if self.jitter_ms > self.delay_ms:
            valid = f"0 to delay_ms, which is {self.delay_ms:g}"
            raise _refuse("Netem", "jitter_ms", self.jitter_ms, valid)
        if self.reorder_pct and not self.delay_ms:
            raise _refuse("Netem", "reorder_pct", self.reorder_pct, "0 unless delay_ms is above 0")
        if self.gemodel is not None and not isinstance(self.gemodel, GilbertElliott):
            raise _refuse("Netem", "gemodel", self.gemodel, "a GilbertElliott or None")
        if self.gemodel is not None and self.loss_pct:
            raise _refuse("Netem", "loss_pct", self.loss_pct, "0 when gemodel is given")
        if self.rate_mbit is not None:
            bounds = MIN_RATE_MBIT, MAX_RATE_MBIT
            _check_number("Netem", "rate_mbit", self.rate_mbit, bounds, "Mbit/s")
        if self.limit_packets is not None:
            if not isinstance(self.limit_packets, int) or isinstance(self.limit_packets, bool):
                raise _refuse("Netem", "limit_packets", self.limit_packets, "a whole number")
            bounds = 1, MAX_LIMIT_PACKETS
            _check_number("Netem", "limit_packets", self.limit_packets, bounds, "packets")

    @property
    def queue_limit(self) -> int:
        """Packets that netem may hold: those in flight at full rate, and its default beside them.

        netem counts delayed packets as queued, so its default of 1,000 caps a 100 ms path at
        about 120 Mbit/s without a word. A path without a rate is taken as 10 Gbit/s.
        """
        if self.limit_packets is not None:
            return self.limit_packets
        rate = _UNSHAPED_MBIT if self.rate_mbit is None else self.rate_mbit
        in_flight = rate * 1e6 / 8 * (self.delay_ms + self.jitter_ms) / 1e3 / _FULL_PACKET_BYTES
        return NETEM_DEFAULT_LIMIT + math.ceil(1.25 * in_flight)

    @property
    def mean_loss_pct(self) -> float:
        """Long-run loss in percent, whichever model gives it."""
        return self.gemodel.mean_loss_pct if self.gemodel else self.loss_pct

    @property
    def holds_packets(self) -> bool:
        """Whether packets can be waiting inside this fault at a given moment."""
        return self.delay_ms > 0 or self.rate_mbit is not None

    def describe(self) -> str:
        """The fault in words: "20 ms delay, 1% loss"."""
        parts = []
        if self.delay_ms:
            spread = f" +- {self.jitter_ms:g} ms" if self.jitter_ms else ""
            parts.append(f"{self.delay_ms:g} ms{spread} delay")
        if self.loss_pct:
            parts.append(f"{self.loss_pct:g}% loss")
        if self.gemodel:
            parts.append(f"{self.gemodel.mean_loss_pct:g}% loss in bursts")
        for name in ("duplicate", "corrupt", "reorder"):
            if value := getattr(self, f"{name}_pct"):
                parts.append(f"{value:g}% {name}")
        if self.rate_mbit is not None:
            parts.append(f"{self.rate_mbit:g} Mbit/s")
        if self.limit_packets is not None:
            parts.append(f"queue of {self.limit_packets} packets")
        return ", ".join(parts) or "no fault"


NO_FAULT = Netem()
CUT = Netem(loss_pct=100.0)
