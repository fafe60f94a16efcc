"""Numbers as people read them."""

from __future__ import annotations

import math

from grader.report.plain_text import shortened
from grader.result import Figure

_BYTE_UNITS = {"B", "byte", "bytes"}
_SECOND_UNITS = {"s", "second", "seconds"}


def quantity(value: float, unit: str = "") -> str:
    if unit in _BYTE_UNITS:
        return size(value)
    if unit in _SECOND_UNITS:
        return seconds(value)
    return f"{number(value)} {shortened(unit, 24)}".rstrip()


def number(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return f"{value:.3e}"


def size(count: float) -> str:
    if not math.isfinite(count):
        return number(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.95 or unit == "TB":
            break
        count /= 1000
    return f"{number(count)} B" if unit == "B" else f"{count:.3g} {unit}"


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return number(value)
    magnitude = abs(value)
    if value == 0:
        return "0 s"
    if magnitude < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if magnitude < 1:
        return f"{value * 1e3:.3g} ms"
    if magnitude < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def points(value: float) -> str:
    return f"{round(value, 2):g}" if math.isfinite(value) else number(value)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def bound_text(figure: Figure) -> str:
    if figure.bound is None:
        return ""
    words = {"<=": "at most", ">=": "at least"}
    relation = words.get(figure.relation, shortened(figure.relation, 12))
    return f"{relation} {quantity(figure.bound, figure.unit)}"


def holds(figure: Figure) -> bool | None:
    """Whether the figure keeps its bound; None without one. NaN keeps none."""
    if figure.bound is None:
        return None
    if figure.relation == ">=":
        return figure.value >= figure.bound
    return figure.value <= figure.bound
