"""Small bars as SVG: a figure against its bound, bytes of a host."""

from __future__ import annotations

import math
from html import escape

from grader.report.plain_text import one_line
from grader.report.quantity import bound_text, holds, quantity
from grader.result import Figure

WIDTH = 180
HEIGHT = 16


def figure_bar(figure: Figure) -> str:
    """The value as a bar, the bound as a stroke across it; empty where neither can be drawn."""
    if figure.bound is None or not _drawable(figure.value) or not _drawable(figure.bound):
        return ""
    full = max(figure.value, figure.bound) * 1.12
    if full <= 0:
        return ""
    value_width = figure.value / full * WIDTH
    bound_x = figure.bound / full * WIDTH
    verdict = "kept" if holds(figure) else "missed"
    words = (
        f"{one_line(figure.name)}: {quantity(figure.value, figure.unit)},"
        f" {bound_text(figure)}, {verdict}"
    )
    return (
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="{escape(words)}"><title>{escape(words)}</title>'
        f'<rect class="bar-rail" y="4" width="{WIDTH}" height="8" rx="2"/>'
        f'<rect class="bar-{verdict}" y="4" width="{value_width:.1f}" height="8" rx="2"/>'
        f'<path class="bar-bound" d="M{bound_x:.1f} 0v{HEIGHT}"/></svg>'
    )


def share_bar(value: float, largest: float, style: str) -> str:
    """A plain bar for a column of numbers; the number stands beside it. style: sent | received."""
    width = value / largest * WIDTH if largest > 0 and _drawable(value) else 0.0
    return (
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' aria-hidden="true" focusable="false">'
        f'<rect class="bar-{style}" y="3" width="{min(width, WIDTH):.1f}" height="10" rx="2"/>'
        "</svg>"
    )


def _drawable(value: float) -> bool:
    return math.isfinite(value) and value >= 0
