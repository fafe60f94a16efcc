"""GitHub Classroom: what an autograding action hands to the grading reporter.

Format: the graders' and the reporter's source, https://github.com/classroom-resources, where each
grader sets its output `result` to base64 of version 1 of the document.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from grader.export import Results, To, deliver, read_submission
from grader.export_words import check_name, words_for_learner
from grader.judged import judged
from grader.outcome import Outcome
from grader.result import CheckResult, GradeResult


def command(results: Results, to: To = None) -> None:
    """A line for $GITHUB_OUTPUT, which classroom-resources/autograding-grading-reporter reads."""
    document = json.dumps(result_document(read_submission(results)))
    deliver(f"result={base64.b64encode(document.encode()).decode()}\n", to)


def result_document(results: Sequence[GradeResult]) -> dict[str, Any]:
    """One submission's results. A check that could not be judged is an error, not a failure."""
    tests = [_test(results, result, check) for result in results for check in result.checks]
    tests += [_hints(result) for result in results if result.hint_cost]
    statuses = {test["status"] for test in tests}
    worst = next((status for status in ("error", "fail") if status in statuses), "pass")
    return {
        "version": 1,
        "status": worst,
        "max_score": judged(results).max_score,
        "tests": tests,
    }


def _test(
    results: Sequence[GradeResult], result: GradeResult, check: CheckResult
) -> dict[str, Any]:
    passed = check.outcome is Outcome.PASSED
    return {
        "name": check_name(results, result, check),
        "status": _status(check.outcome),
        "score": check.points,
        "message": None if passed else words_for_learner(check),
        "test_code": "",
        "filename": "",
        "line_no": 0,
        "duration": round(check.duration_s * 1000),
    }


def _hints(result: GradeResult) -> dict[str, Any]:
    """The reporter adds up the tests' scores, so what hints cost has to be one of them."""
    cost = round(result.score - sum(check.points for check in result.checks), 6)
    return {
        "name": f"{result.hints_used} hints taken for problem {result.problem.number:02d}",
        "status": "pass",
        "score": cost,
        "message": None,
        "test_code": "",
        "filename": "",
        "line_no": 0,
        "duration": 0,
    }


def _status(outcome: Outcome) -> str:
    if not outcome.counts_against_learner:
        return "error"
    return "pass" if outcome is Outcome.PASSED else "fail"
