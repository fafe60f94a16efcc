"""PrairieLearn: results.json of an external grader.

Format: https://docs.prairielearn.com/externalGrading/#grading-results
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grader.export import Results, To, deliver, read_submission
from grader.export_words import check_name, summary, words_for_learner
from grader.judged import judged
from grader.report.plain_text import one_line
from grader.result import CheckResult, GradeResult


def command(results: Results, to: To = None) -> None:
    """PrairieLearn's results.json. What could not be judged costs no attempt."""
    graded = read_submission(results)
    deliver(json.dumps(results_json(graded), indent=1) + "\n", to)


def results_json(results: Sequence[GradeResult]) -> dict[str, Any]:
    """One submission's results. Where any check could not be judged it is not gradable."""
    points = judged(results)
    words = summary(results)
    document: dict[str, Any] = {
        "gradable": not points.unjudged,
        "message": words,
        "output": "",
        "images": [],
        "tests": [_test(results, result, check) for result in results for check in result.checks],
    }
    if points.unjudged:
        return document | {"format_errors": [words]}
    share = points.score / points.max_score if points.max_score else 0.0
    return document | {"score": min(1.0, max(0.0, share))}


def _test(
    results: Sequence[GradeResult], result: GradeResult, check: CheckResult
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": check_name(results, result, check),
        "description": "" if check.hidden else one_line(check.about),
        "message": words_for_learner(check),
        "output": "",
        "images": [],
    }
    if check.outcome.counts_against_learner:
        shown |= {"points": check.points, "max_points": check.max_points}
    return shown
