"""Gradescope: results.json of an autograder.

Format: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grader.export import Results, To, deliver, read_submission
from grader.export_words import check_name, check_words, summary
from grader.judged import judged
from grader.outcome import EXIT_UNFIT, Outcome
from grader.result import CheckResult, GradeResult
from grader.user_mistake import stop

_STATUS = {Outcome.PASSED: "passed", Outcome.PARTIAL: None}


def command(results: Results, to: To = None) -> None:
    """Gradescope's results.json. Hidden checks are for instructors only."""
    graded = read_submission(results)
    if judged(graded).nothing:
        stop("nothing could be judged, so there is no score to hand over; grade again", EXIT_UNFIT)
    deliver(json.dumps(results_json(graded), indent=1) + "\n", to)


def results_json(results: Sequence[GradeResult]) -> dict[str, Any]:
    """One submission's results. The score counts what was judged."""
    points = judged(results)
    return {
        "score": points.score,
        "execution_time": round(sum(result.duration_s for result in results)),
        "output": summary(results),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {
            "max_score": points.max_score,
            "unjudged_points": points.unjudged,
            "gradings": [
                {"problem": r.problem.number, "outcome": r.outcome, "seed": r.seed} for r in results
            ],
        },
        "tests": [_test(results, result, check) for result in results for check in result.checks],
    }


def _test(
    results: Sequence[GradeResult], result: GradeResult, check: CheckResult
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": check_name(results, result, check),
        "output": check_words(check),
        "visibility": "hidden" if check.hidden else "visible",
        "extra_data": {"check": check.name, "outcome": check.outcome},
    }
    if check.outcome.counts_against_learner:  # without a score it neither passes nor fails
        shown |= {"score": check.points, "max_score": check.max_points}
        status = _STATUS.get(check.outcome, "failed")
        shown |= {"status": status} if status else {}
    return shown
