"""A small shape for each outcome, so that it shows without colour."""

from __future__ import annotations

from grader.outcome import Outcome

_SHAPES = {
    Outcome.PASSED: '<path d="M2 6.5 4.8 9.3 10 3"/>',
    Outcome.FAILED: '<path d="M2.5 2.5 9.5 9.5M9.5 2.5 2.5 9.5"/>',
    Outcome.PARTIAL: (
        '<circle cx="6" cy="6" r="4.2"/><path class="solid" d="M6 1.8a4.2 4.2 0 0 1 0 8.4z"/>'
    ),
    Outcome.TIMED_OUT: '<circle cx="6" cy="6" r="4.5"/><path d="M6 3.2V6l2 1.6"/>',
    Outcome.CRASHED: '<path d="M6.8 1 3 6.6h3L5.2 11 9 5.4H6z"/>',
    Outcome.REFUSED: '<circle cx="6" cy="6" r="4.5"/><path d="M3 9 9 3"/>',
    Outcome.SKIPPED: '<path d="M2 6h8"/>',
    Outcome.UNFIT: '<path d="M6 1.5 11 10.5H1zM6 5v2.4M6 8.8v.4"/>',
    Outcome.INCONCLUSIVE: '<path d="M1.5 7c1.5-3 3-3 4.5-1s3 2 4.5-1"/>',
}


def mark(outcome: Outcome) -> str:
    return (
        '<svg class="mark" width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"'
        f' focusable="false">{_SHAPES[outcome]}</svg>'
    )


def tone(outcome: Outcome) -> str:
    """The colour family of an outcome, as report.css names it."""
    if outcome is Outcome.PASSED:
        return "good"
    if outcome is Outcome.PARTIAL:
        return "mixed"
    if outcome is Outcome.SKIPPED or not outcome.counts_against_learner:
        return "neutral"
    return "bad"
