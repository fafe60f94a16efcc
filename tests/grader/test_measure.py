"""How often a time is measured before it decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grader.measure import Measure


def times(*values: float) -> Iterator[float]:
    return iter(values)


def test_a_grading_takes_the_best_of_three() -> None:
    sample = Measure().best_of(times(1.1, 1.3, 1.05).__next__, enough=1.15)
    assert sample.values == (1.1, 1.3, 1.05)
    assert sample.best == 1.05


def test_a_trial_ends_with_the_first_time_within_its_bound() -> None:
    assert Measure(brief=True).best_of(times(1.3, 1.1).__next__, enough=1.15).values == (1.3, 1.1)


def test_a_trial_s_time_beyond_its_bound_is_measured_as_often_as_a_grading_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grader.measure.crowded", lambda _before, _after: False)
    far = (2.0, 2.01, 2.02, 2.0, 2.01, 2.02, 2.0, 2.01, 2.02)
    brief = Measure(brief=True).best_of(times(*far).__next__, enough=1.15)
    assert brief.values == Measure().best_of(times(*far).__next__, enough=1.15).values


def test_a_trial_repeats_half_as_often() -> None:
    assert [Measure(brief=True).rounds(n) for n in (1, 5, 12)] == [1, 3, 6]
    assert Measure().rounds(12) == 12
