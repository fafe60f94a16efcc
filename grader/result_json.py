"""A grading as versioned JSON, and back.

`python -m grader.result_json` writes the schema anew into result.schema.json.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from grader.result import (
    SCHEMA_VERSION,
    CheckResult,
    FaultSpan,
    GradeResult,
    JobRecord,
    RankTrace,
    Span,
)

SCHEMA_PATH = Path(__file__).with_name("result.schema.json")
MAX_SPANS_PER_RANK = 5_000
MAX_OUTPUT_CHARS = 262_144
LEFT_OUT = "left out"
"""Kind of the one span that stands for those dropped at the start of a long trace."""

_ADAPTER = TypeAdapter(GradeResult)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class BadResult(ValueError):
    """This text is not a grading of the schema version read here; says why in one sentence."""


def to_json(result: GradeResult) -> str:
    """The result as one line of JSON. Long traces and outputs are cut at the front, with a note."""
    for name, value in (
        ("score", result.score),
        ("max_score", result.max_score),
        ("hint_cost", result.hint_cost),
        ("unjudged_points", result.unjudged_points),
    ):
        _require_finite(name, value)
    stored = replace(
        result,
        duration_s=_finite_or_zero(result.duration_s),
        checks=tuple(_storable_check(check) for check in result.checks),
    )
    plain = _ADAPTER.dump_python(stored, mode="json")
    text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text) + "\n"


def from_json(text: str) -> GradeResult:
    """Read what `to_json` wrote; unknown keys, other versions and wrong types are refused."""
    try:
        raw = json.loads(
            text,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object_without_repeats,
        )
    except RecursionError:
        raise BadResult("The result file is nested too deeply to be a grading.") from None
    except json.JSONDecodeError as error:
        raise BadResult(
            f"The result file is not JSON: {error.msg} at line {error.lineno}."
        ) from None
    if not isinstance(raw, dict):
        raise BadResult("The result file holds no JSON object.")
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise BadResult(
            f"The result file has schema version {version!r}; only version {SCHEMA_VERSION}"
            " is read here, so grade the submission again."
        )
    schema = json_schema()
    _refuse_unknown_keys(raw, schema, schema["$defs"], "")
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadResult(
            f"The result file has a wrong value at {_path(first['loc'])}: {first['msg']}."
        ) from None


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the result file."""
    generated = _without_titles(_ADAPTER.json_schema())
    for node in (generated, *generated["$defs"].values()):
        if node.get("type") == "object":
            node["additionalProperties"] = False
    generated["properties"]["schema_version"] = {"const": SCHEMA_VERSION, "type": "integer"}
    generated["required"] = sorted({*generated["required"], "schema_version"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:distlab:result:{SCHEMA_VERSION}",
        "title": "distlab grading result",
        **generated,
    }


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


def _storable_check(check: CheckResult) -> CheckResult:
    _require_finite(f"points of {check.name!r}", check.points)
    _require_finite(f"max_points of {check.name!r}", check.max_points)
    unfit_names = [f.name for f in check.figures if not math.isfinite(f.value)]
    message = check.message
    if unfit_names:
        named = ", ".join(repr(name) for name in unfit_names)
        message = f"{message}\nNot a finite number, so left out of the figures: {named}.".lstrip()
    return replace(
        check,
        message=message,
        figures=tuple(
            replace(f, bound=f.bound if f.bound is None or math.isfinite(f.bound) else None)
            for f in check.figures
            if math.isfinite(f.value)
        ),
        jobs=tuple(_storable_job(job) for job in check.jobs),
        duration_s=_finite_or_zero(check.duration_s),
    )


def _storable_job(job: JobRecord) -> JobRecord:
    output = job.output
    if len(output) > MAX_OUTPUT_CHARS:
        note = f"[the first {len(output) - MAX_OUTPUT_CHARS:,} characters were left out]\n"
        output = note + output[-MAX_OUTPUT_CHARS + len(note) :]
    return replace(
        job,
        output=output,
        ranks=tuple(_storable_trace(trace) for trace in job.ranks),
        faults=tuple(fault for fault in job.faults if _finite_times(fault)),
        duration_s=_finite_or_zero(job.duration_s),
    )


def _storable_trace(trace: RankTrace) -> RankTrace:
    spans = tuple(span for span in trace.spans if _finite_times(span))
    if len(spans) > MAX_SPANS_PER_RANK:
        kept = spans[-MAX_SPANS_PER_RANK + 1 :]
        dropped = spans[: -MAX_SPANS_PER_RANK + 1]
        note = Span(
            kind=LEFT_OUT,
            operation=f"{len(dropped):,} earlier operations left out",
            start=min(span.start for span in dropped),
            end=max(span.start if span.end is None else span.end for span in dropped),
        )
        spans = (note, *kept)
    return replace(trace, spans=spans)


def _finite_times(timed: Span | FaultSpan) -> bool:
    return math.isfinite(timed.start) and (timed.end is None or math.isfinite(timed.end))


def _finite_or_zero(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


def _require_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise BadResult(f"The {name} of a grading must be a finite number, not {value}.")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadResult(f"The result file holds {digits[:40]}, which is too large a number.")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise BadResult(f"The result file holds {word}, which is not a number.")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BadResult(f"The result file states the key {repeated!r} twice in one object.")
    return found


def _refuse_unknown_keys(
    raw: Any, schema: dict[str, Any], defs: dict[str, Any], where: str
) -> None:
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", ()):
        _refuse_unknown_keys(raw, choice, defs, where)
    known = schema.get("properties")
    if known is not None and isinstance(raw, dict):
        for key, value in raw.items():
            if key not in known:
                raise BadResult(
                    f"The result file has an unknown key {key!r} in {where or 'the result'}."
                )
            _refuse_unknown_keys(value, known[key], defs, f"{where}.{key}" if where else key)
    if "items" in schema and isinstance(raw, list):
        for index, value in enumerate(raw):
            _refuse_unknown_keys(value, schema["items"], defs, f"{where}[{index}]")


def _path(location: tuple[int | str, ...]) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return steps.lstrip(".") or "the top"


def _without_titles(node: Any) -> Any:
    """Pydantic's generated titles repeat the keys; a property that is named title stays."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if isinstance(node, dict):
        return {
            key: _without_titles(value)
            for key, value in node.items()
            if not (key == "title" and isinstance(value, str))
        }
    return node


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
