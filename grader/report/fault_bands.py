"""Faults on a timeline: a labelled bar above the lanes, a shaded band on those it touches."""

from __future__ import annotations

import math
import re

from grader.report.plain_text import one_line, shortened
from grader.report.quantity import seconds
from grader.report.time_axis import CHAR, LEFT, RIGHT, WIDTH, box_svg, coordinate, safe, x_of
from grader.result import FaultSpan, RankTrace

FAULT_ROW = 20
MAX_FAULT_ROWS = 6
LANE_GAP = 10


def fault_in_words(fault: FaultSpan) -> str:
    """ "delay 20 ms on node2, from 1 s to 2 s" """
    until = "to the end" if fault.end is None else f"to {seconds(fault.end)}"
    on = f" on {one_line(fault.target)}" if fault.target else ""
    return f"{one_line(fault.description)}{on}, from {seconds(fault.start)} {until}"


def band_svg(
    faults: tuple[FaultSpan, ...],
    boxes: list[tuple[RankTrace, float, float]],
    end: float,
    layer: str,
) -> str:
    """Under the blocks a shaded area, over them its two edges, on the lanes it touches."""
    pieces: list[str] = []
    for fault in faults:
        if not math.isfinite(fault.start) or not boxes:
            continue
        x, width = _fault_box(fault, end)
        if width > 0.97 * (WIDTH - LEFT - RIGHT):
            continue  # in force all the time: the bar above the lanes says it
        for _, top, height in _touched(fault, boxes):
            y, tall = top - LANE_GAP / 2, height + LANE_GAP
            if layer == "under":
                pieces.append(box_svg("fault-area", x=x, y=y, width=width, height=tall))
            else:
                down = f"{coordinate(y)}v{coordinate(tall)}"
                right = coordinate(x + width)
                pieces.append(
                    f'<path class="fault-edge" d="M{coordinate(x)} {down}M{right} {down}"/>'
                )
    return "".join(pieces)


def _touched(
    fault: FaultSpan, boxes: list[tuple[RankTrace, float, float]]
) -> list[tuple[RankTrace, float, float]]:
    """The lanes of the hosts that the fault names; all of them where it names none."""
    named = [
        box
        for box in boxes
        if box[0].host and re.search(rf"(?<!\w){re.escape(box[0].host)}(?!\w)", fault.target)
    ]
    return named or boxes


def label_svg(fault: FaultSpan, row: int, end: float) -> str:
    x, width = _fault_box(fault, end)
    y = row * FAULT_ROW + 2
    on = f" on {fault.target}" if fault.target else ""
    room_right = WIDTH - RIGHT - x - 6
    label = shortened(f"{fault.description}{on}", max(int(max(room_right, x - LEFT) / CHAR), 8))
    anchor, text_x = "start", x + 6
    if len(label) * CHAR > width - 6 and len(label) * CHAR < room_right - width:
        text_x += width
    if len(label) * CHAR > room_right:
        anchor, text_x = "end", x - 6
    bar = box_svg(
        "fault-bar", x=x, y=y, width=width, height=FAULT_ROW - 4, title=fault_in_words(fault)
    )
    return (
        f"{bar}"
        f'<text class="fault-name" x="{coordinate(text_x)}" y="{y + 12}" text-anchor="{anchor}">'
        f"{safe(label)}</text>"
    )


def fault_rows(faults: tuple[FaultSpan, ...], end: float) -> dict[int, int]:
    """Row of each fault by its place, so that neither bars nor labels lie on each other."""
    free_from: list[float] = []
    rows: dict[int, int] = {}
    for index, fault in enumerate(faults):
        x, width = _fault_box(fault, end)
        label = len(f"{fault.description} on {fault.target}") * CHAR + width + 12
        start = x if x + label < WIDTH - RIGHT else min(x, max(x - label, LEFT))
        row = next((r for r, free in enumerate(free_from) if free <= start), len(free_from))
        if row == len(free_from):
            free_from.append(0.0)
        free_from[row] = max(x + width, start + label)
        rows[index] = row
    return rows


def _fault_box(fault: FaultSpan, end: float) -> tuple[float, float]:
    start = fault.start if math.isfinite(fault.start) else 0.0
    stop = end if fault.end is None or not math.isfinite(fault.end) else fault.end
    x = x_of(start, end)
    return x, max(x_of(max(stop, start), end) - x, 3.0)
