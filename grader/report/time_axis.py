"""The time axis that the lanes and the faults of a timeline share, and how its SVG is written."""

from __future__ import annotations

import math
from html import escape

from grader.report.plain_text import one_line

WIDTH = 960
LEFT = 132
RIGHT = 20
CHAR = 6.7
"""Mean width of a character of the small type, in the picture's units."""


def axis_svg(end: float, top: float, bottom: float) -> str:
    step = _tick_step(end)
    unit, scale = ("s", 1.0) if end >= 1 else ("ms", 1e3) if end >= 1e-3 else ("µs", 1e6)
    pieces = [f'<path class="axis" d="M{LEFT} {coordinate(bottom)}H{WIDTH - RIGHT}"/>']
    for index in range(int(end / step + 1e-9) + 1):
        x = coordinate(x_of(index * step, end))
        label = f"{index * step * scale:.6g}" + (f" {unit}" if index == 0 else "")
        pieces.append(
            f'<path class="grid" d="M{x} {coordinate(top)}V{coordinate(bottom)}"/>'
            f'<text class="tick" x="{x}" y="{coordinate(bottom + 16)}">{label}</text>'
        )
    return "".join(pieces)


def _tick_step(end: float) -> float:
    rough = end / 8
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def x_of(time: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(time / end, 0.0), 1.0)


def box_svg(style: str, *, x: float, y: float, width: float, height: float, title: str = "") -> str:
    """A rectangle; title becomes its tooltip."""
    opening = (
        f'<rect class="{style}" x="{coordinate(x)}" y="{coordinate(y)}"'
        f' width="{coordinate(width)}" height="{coordinate(height)}"'
    )
    return f"{opening}><title>{safe(title)}</title></rect>" if title else f"{opening}/>"


def coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def safe(text: str) -> str:
    return escape(one_line(text))
