"""What is written can be read again, follows the schema, and nothing else is accepted."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jsonschema
import pytest

from grader.result import Figure, RankTrace, Span
from grader.result_json import (
    LEFT_OUT,
    MAX_OUTPUT_CHARS,
    MAX_SPANS_PER_RANK,
    SCHEMA_PATH,
    BadResult,
    from_json,
    json_schema,
    to_json,
)


def with_trace(result, trace):
    check = result.checks[0]
    job = replace(check.jobs[0], ranks=(trace,))
    return replace(result, checks=(replace(check, jobs=(job,)),))


def test_the_committed_schema_is_not_stale():
    committed = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    assert committed == json_schema(), "run python -m grader.result_json"


def test_the_schema_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_every_result_follows_the_schema(any_result):
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(to_json(any_result)))


@pytest.mark.parametrize("name", ["passed", "failed", "timed out", "unfit", "crowded"])
def test_a_result_comes_back_equal(make_result, name):
    result = make_result(name)
    assert from_json(to_json(result)) == result


def test_a_hostile_result_comes_back_the_same_the_second_time(make_result):
    once = to_json(make_result("hostile"))
    assert to_json(from_json(once)) == once


def test_no_text_holds_nan_infinity_or_half_a_surrogate_pair(make_result):
    text = to_json(make_result("hostile"))
    text.encode("utf-8")

    def refuse(word):
        raise AssertionError(word)

    json.loads(text, parse_constant=refuse)


def test_a_figure_that_is_no_number_is_named_in_the_message(make_result):
    result = make_result("passed")
    check = replace(result.checks[1], figures=(Figure("busbw", math.nan), Figure("n", 2.0)))
    read = from_json(to_json(replace(result, checks=(check,)))).checks[0]
    assert [figure.name for figure in read.figures] == ["n"]
    assert "'busbw'" in read.message


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_never_written(make_result, score):
    with pytest.raises(BadResult, match="score"):
        to_json(replace(make_result("passed"), score=score))


def test_long_traces_lose_their_oldest_spans_and_say_so(make_result):
    spans = tuple(Span("compute", f"op {n}", n, n + 1) for n in range(MAX_SPANS_PER_RANK + 10))
    kept = (
        from_json(to_json(with_trace(make_result("passed"), RankTrace(0, "node1", spans))))
        .checks[0]
        .jobs[0]
        .ranks[0]
        .spans
    )
    assert len(kept) == MAX_SPANS_PER_RANK
    assert kept[0] == Span(LEFT_OUT, "11 earlier operations left out", 0, 11)
    assert kept[1:] == spans[11:]


def test_long_output_keeps_its_end_and_says_so(make_result):
    result = make_result("passed")
    check = result.checks[0]
    job = replace(check.jobs[0], output="x" * 2 * MAX_OUTPUT_CHARS + "the end")
    text = to_json(replace(result, checks=(replace(check, jobs=(job,)),)))
    output = from_json(text).checks[0].jobs[0].output
    assert len(output) == MAX_OUTPUT_CHARS
    assert output.startswith("[the first ")
    assert output.endswith("the end")


def changed(result, change):
    raw = json.loads(to_json(result))
    change(raw)
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw.update(schema_version=2), "schema version 2"),
        (lambda raw: raw.update(schema_version=True), "schema version True"),
        (lambda raw: raw.pop("schema_version"), "schema version None"),
        (lambda raw: raw.update(extra=1), "unknown key 'extra' in the result"),
        (
            lambda raw: raw["checks"][0]["jobs"][0].update(x=1),
            r"unknown key 'x' in checks\[0\].jobs\[0\]",
        ),
        (lambda raw: raw.update(score="12"), "at score"),
        (lambda raw: raw["checks"][1].pop("points"), r"at checks\[1\].points"),
        (lambda raw: raw.update(outcome="excellent"), "at outcome"),
        (lambda raw: raw["machine"].update(cpu_count=2.5), "at machine.cpu_count"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_place(make_result, change, says):
    with pytest.raises(BadResult, match=says):
        from_json(changed(make_result("passed"), change))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"score": NaN}', "holds NaN"),
        ('{"score": 1, "score": 2}', "'score' twice"),
    ],
)
def test_text_that_is_no_result_is_refused_in_one_sentence(text, says):
    with pytest.raises(BadResult, match=says) as caught:
        from_json(text)
    assert "\n" not in str(caught.value)


def test_a_number_too_large_for_a_float_is_refused(make_result):
    text = to_json(make_result("passed")).replace('"score":35.0', '"score":1e999')
    assert "1e999" in text
    with pytest.raises(BadResult):
        from_json(text)


def test_half_a_surrogate_pair_is_refused_not_a_crash(make_result):
    text = to_json(make_result("passed")).replace("work/solution.py", "\ud800")
    with pytest.raises(BadResult):
        from_json(text)
