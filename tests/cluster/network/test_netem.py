from __future__ import annotations

import math
from typing import Any

import pytest

from cluster.network.netem import GilbertElliott, Netem


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("loss_pct", 150, "0 to 100"),
        ("loss_pct", -1, "0 to 100"),
        ("loss_pct", math.nan, "0 to 100"),
        ("loss_pct", "5", "0 to 100"),
        ("loss_pct", True, "0 to 100"),
        ("duplicate_pct", 100.5, "0 to 100"),
        ("corrupt_pct", math.inf, "0 to 100"),
        ("delay_ms", -0.1, "0 to 10000"),
        ("delay_ms", 10_001, "0 to 10000"),
        ("jitter_ms", 1, "0 to delay_ms"),
        ("reorder_pct", 5, "unless delay_ms is above 0"),
        ("rate_mbit", 0, "0.01 to 30000"),
        ("rate_mbit", 1e9, "0.01 to 30000"),
        ("limit_packets", 0, "1 to 1e+08"),
        ("limit_packets", 2.5, "a whole number"),
        ("gemodel", 5, "a GilbertElliott"),
    ],
)
def test_a_bad_value_is_refused_naming_field_value_and_valid_range(
    field: str, value: Any, says: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        Netem(**{field: value})
    for part in (field, repr(value), says):
        assert part in str(refusal.value)


def test_burst_loss_is_refused_when_it_could_never_begin_or_end() -> None:
    with pytest.raises(ValueError, match="p_pct"):
        GilbertElliott(p_pct=0, r_pct=0)
    with pytest.raises(ValueError, match="r_pct is 101"):
        GilbertElliott(p_pct=1, r_pct=101)


def test_two_loss_models_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="loss_pct"):
        Netem(loss_pct=1, gemodel=GilbertElliott(1, 10))


def test_mean_loss_of_bursts_weighs_both_states() -> None:
    model = GilbertElliott(p_pct=10, r_pct=30, bad_loss_pct=80, good_loss_pct=4)
    assert model.mean_loss_pct == pytest.approx(0.25 * 80 + 0.75 * 4)


@pytest.mark.parametrize(
    ("fault", "at_least"),
    [
        (Netem(), 1_000),
        (Netem(delay_ms=1, rate_mbit=1), 1_000),
        (Netem(delay_ms=100), 83_000),  # 10 Gbit/s for 100 ms, in packets of 1,500 bytes
        (Netem(delay_ms=100, rate_mbit=1_000), 8_300),
        (Netem(delay_ms=50, jitter_ms=50), 83_000),
    ],
)
def test_queue_limit_holds_what_is_in_flight(fault: Netem, at_least: int) -> None:
    assert at_least <= fault.queue_limit <= 1.5 * at_least + 1_000


def test_a_stated_queue_limit_is_kept() -> None:
    assert Netem(delay_ms=100, limit_packets=7).queue_limit == 7


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Netem(), "no fault"),
        (Netem(delay_ms=20, loss_pct=1), "20 ms delay, 1% loss"),
        (Netem(delay_ms=20, jitter_ms=2.5), "20 ms +- 2.5 ms delay"),
        (Netem(rate_mbit=200, limit_packets=50), "200 Mbit/s, queue of 50 packets"),
        (Netem(gemodel=GilbertElliott(5, 15)), "25% loss in bursts"),
    ],
)
def test_a_fault_describes_itself(fault: Netem, words: str) -> None:
    assert fault.describe() == words
