"""When a measurement was disturbed by other programs, and when it was not."""

from __future__ import annotations

import pytest

from cluster import foreign_load
from cluster.foreign_load import LoadReading, crowded


@pytest.mark.parametrize(
    ("foreign", "ours", "stolen", "disturbed"),
    [
        (0.0, 2.0, 0.0, False),  # a submission that spins is its own affair
        (1.0, 0.6, 0.0, False),  # one core for each
        (1.0, 1.0, 0.0, True),  # nothing is left over, and others have half
        (0.3, 1.7, 0.0, False),
        (0.0, 1.5, 0.5, True),  # the hypervisor took it
        (1.4, 0.1, 0.0, True),
    ],
)
def test_seconds_of_two_cores_in_one_second(
    monkeypatch: pytest.MonkeyPatch, foreign: float, ours: float, stolen: float, disturbed: bool
) -> None:
    monkeypatch.setattr(foreign_load.os, "cpu_count", lambda: 2)
    after = LoadReading(11.0, 100 + foreign + ours, 50 + ours, stolen)
    assert crowded(LoadReading(10.0, 100.0, 50.0, 0.0), after) is disturbed
