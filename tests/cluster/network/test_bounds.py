from __future__ import annotations

import random

import pytest

from cluster.network.bounds import choose_pairs, expected_between, loss_interval
from cluster.network.netem import CUT, GilbertElliott, Netem
from cluster.network.paths import Path, partition


def test_faults_along_a_path_add_up() -> None:
    rules = {
        Path(0, None): Netem(delay_ms=5, rate_mbit=200),
        Path(0, 1): Netem(delay_ms=10, jitter_ms=2, loss_pct=50),
        Path(None, 1): Netem(loss_pct=50, rate_mbit=100),
    }
    found = expected_between(rules, 0, 1)
    assert (found.delay_ms, found.jitter_ms, found.rate_mbit) == (15, 2, 100)
    assert found.loss == pytest.approx(0.75)
    assert expected_between(rules, 1, 0).delay_ms == 0


def test_the_shortest_queue_on_the_way_counts() -> None:
    rules = {Path(0, None): Netem(delay_ms=10, limit_packets=24), Path(None, 1): Netem(delay_ms=1)}
    assert expected_between(rules, 0, 1).queue_packets == 24
    assert expected_between(rules, 0, 2).queue_packets == 24
    assert expected_between(rules, 2, 1).queue_packets > 1_000


@pytest.mark.parametrize(("sent", "loss"), [(200, 0.01), (1_000, 0.05), (500, 0.3), (100, 0.99)])
def test_chance_leaves_the_interval_about_once_in_a_thousand(sent: int, loss: float) -> None:
    low, high = loss_interval(sent, loss)
    draw = random.Random(1)
    trials = 3_000
    outside = sum(
        not low <= sum(draw.random() < loss for _ in range(sent)) <= high for _ in range(trials)
    )
    assert outside <= 12  # three expected
    assert low <= sent * loss <= high


def test_no_loss_and_all_loss_leave_nothing_to_chance() -> None:
    assert loss_interval(50, 0) == (0, 0)
    assert loss_interval(50, 1) == (50, 50)


def test_burst_loss_has_the_wider_interval() -> None:
    model = GilbertElliott(1, 9)
    burstiness = expected_between({Path(0, 1): Netem(gemodel=model)}, 0, 1).burstiness
    single, burst = loss_interval(1_000, 0.1), loss_interval(1_000, 0.1, burstiness)
    assert burst[0] < single[0]
    assert burst[1] > single[1]


def test_pairs_chosen_pass_every_path_and_avoid_cut_ones() -> None:
    rules = partition([{0, 1}, {2, 3}]) | {Path(0, None): Netem(delay_ms=5)}
    pairs = {(src, dst): expected for src, dst, expected in choose_pairs(rules, {0, 1, 2, 3})}
    assert set(pairs) >= {(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (3, 0), (2, 1), (3, 1)}
    assert choose_pairs({Path(0, None): Netem(delay_ms=1), Path(0, 1): CUT}, {0, 1, 2})
