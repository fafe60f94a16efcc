"""The timeline of one job as SVG: a lane for each rank, faults as bands on the same axis.

Colours and patterns are classes of report.css; `pattern_defs` must stand once on the page.
"""

from __future__ import annotations

from grader.report.fault_bands import (
    FAULT_ROW,
    LANE_GAP,
    MAX_FAULT_ROWS,
    band_svg,
    fault_in_words,
    fault_rows,
    label_svg,
)
from grader.report.lanes import KINDS, Block, Placed, job_end, joined, place
from grader.report.plain_text import one_line, shortened
from grader.report.quantity import counted, seconds, size
from grader.report.time_axis import (
    CHAR,
    LEFT,
    RIGHT,
    WIDTH,
    axis_svg,
    box_svg,
    coordinate,
    safe,
    x_of,
)
from grader.result import JobRecord, RankTrace

ROW = 18
AXIS = 24
MAX_FAULTS = 60
COLUMN_NOTE = "A narrow column stands for several operations; heights are shares of its time."


def pattern_defs() -> str:
    """Stripes and dots that tell the kinds apart without colour."""
    return (
        '<svg width="0" height="0" class="defs" aria-hidden="true" focusable="false"><defs>'
        '<pattern id="fill-communication" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect width="7" height="7" class="base-communication"/>'
        '<rect width="2" height="7" class="mark-communication"/></pattern>'
        '<pattern id="fill-wait" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" class="base-wait"/>'
        '<circle cx="3" cy="3" r="1.3" class="mark-wait"/></pattern>'
        '<pattern id="fill-other" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" class="base-other"/>'
        '<rect width="6" height="1.5" class="mark-other"/></pattern>'
        '<pattern id="fill-fault" width="8" height="8" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(-45)"><rect width="8" height="8" class="base-fault"/>'
        '<rect width="1" height="8" class="mark-fault"/></pattern></defs></svg>'
    )


def swatch(kind: str) -> str:
    """The key to one kind of block; kind may also be "fault", or "open" for an unfinished one."""
    if kind == "open":
        shape = '<path class="open-end" d="M13 0v14"/>'
    else:
        shape = f'<rect x="0.5" y="0.5" width="25" height="13" rx="2" class="k-{_known(kind)}"/>'
    return (
        '<svg class="swatch" width="26" height="14" viewBox="0 0 26 14" aria-hidden="true">'
        f"{shape}</svg>"
    )


def timeline_svg(job: JobRecord, key: str, source: str, most_blocks: int = 4000) -> str:
    """The picture of one job. key: unique on the page; most_blocks: about how many to draw."""
    end = job_end(job)
    faults = job.faults[:MAX_FAULTS]
    rows_of_faults = fault_rows(faults, end)
    shown_rows = min(max(rows_of_faults.values(), default=-1) + 1, MAX_FAULT_ROWS)
    lanes = [(trace, place(trace, end)) for trace in job.ranks]
    rows = [max((one.row for one in placed), default=0) + 1 for _, placed in lanes]
    shortest = end * max(1.0 / (WIDTH - LEFT - RIGHT), sum(rows) / max(most_blocks, 1))
    top = shown_rows * FAULT_ROW + (8 if shown_rows else 2)
    tops: list[float] = []
    y = float(top)
    for count in rows:
        tops.append(y)
        y += count * ROW + LANE_GAP
    heights = [float(count * ROW) for count in rows]
    boxes = list(zip(job.ranks, tops, heights, strict=True))
    pieces = [axis_svg(end, top - 4, y), band_svg(faults, boxes, end, "under")]
    for (trace, placed), lane_top, height in zip(lanes, tops, heights, strict=True):
        pieces.append(_lane_name(trace, lane_top, height))
        blocks = joined(placed, shortest)
        pieces.extend(_block(block, lane_top, end, source) for block in blocks)
    pieces.append(band_svg(faults, boxes, end, "over"))
    pieces.extend(
        label_svg(fault, row, end)
        for fault, row in zip(faults, rows_of_faults.values(), strict=True)
        if row < MAX_FAULT_ROWS
    )
    if any('class="column"' in piece for piece in pieces):
        y += AXIS
        pieces.append(
            f'<text class="note" x="{LEFT}" y="{coordinate(y + 14)}">{COLUMN_NOTE}</text>'
        )
    tall = coordinate(y + AXIS)
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {tall}" width="{WIDTH}"'
        f' height="{tall}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">Timeline of {safe(job.label)}</title>'
        f'<desc id="{key}-d">{safe(described(job))}</desc>' + "".join(pieces) + "</svg>"
    )


def described(job: JobRecord) -> str:
    """What the picture shows, for those who do not see it; the tables below it give the rest."""
    words = [f"{counted(len(job.ranks), 'rank')} over {seconds(job_end(job))}."]
    words += [f"{fault_in_words(fault)}." for fault in job.faults]
    for trace in job.ranks:
        for span in trace.spans:
            if span.end is None:
                words.append(f"Rank {trace.rank} was still in {one_line(span.operation)}.")
    return " ".join(words[:40])


def _block(block: Block, lane_top: float, end: float, source: str) -> str:
    x = x_of(block.start, end)
    width = max(x_of(block.end, end) - x, 0.8)
    y = lane_top + block.row * ROW
    drawn = (
        _one_operation(block.placed[0], x, y, width, source)
        if len(block.placed) == 1
        else _column(block, x, y, width)
    )
    if block.unfinished:
        drawn += (
            f'<path class="open-end" d="M{coordinate(x + width)} {coordinate(y - 2)}v{ROW + 2}"/>'
        )
    return drawn


def _one_operation(placed: Placed, x: float, y: float, width: float, source: str) -> str:
    kind = _known(placed.span.kind)
    words = _operation_in_words(placed, source)
    box = box_svg(f"k-{kind}", x=x, y=y, width=width, height=ROW - 2, title=words)
    label = shortened(placed.span.operation, int((width - 8) / CHAR))
    if width <= 34 or len(label) < 3:
        return box
    spot = f'x="{coordinate(x + 5)}" y="{coordinate(y + ROW - 6)}"'
    return f'{box}<text class="in on-{kind}" {spot}>{safe(label)}</text>'


def _column(block: Block, x: float, y: float, width: float) -> str:
    """Several operations too short to tell apart: the height of each kind is its share."""
    scale = (ROW - 2) / max(sum(block.shares.values()), 1.0)
    bottom = y + ROW - 2
    rects = []
    for kind, share in block.shares.items():
        bottom -= share * scale
        rects.append(box_svg(f"k-{_known(kind)}", x=x, y=bottom, width=width, height=share * scale))
    shares = ", ".join(f"{_known(kind)} {share:.0%}" for kind, share in block.shares.items())
    times = f"{seconds(block.start)} to {seconds(block.end)}"
    title = f"{len(block.placed):,} operations, {times}: {shares}"
    return f'<g class="column"><title>{title}</title>{"".join(rects)}</g>'


def _operation_in_words(placed: Placed, source: str) -> str:
    span = placed.span
    words = shortened(span.operation, 60)
    if span.peer >= 0:
        words += f", peer rank {span.peer}"
    if span.bytes > 0:
        words += f", {size(span.bytes)}"
    if span.tag >= 0:
        words += f", tag {span.tag}"
    if span.line > 0:
        words += f", {source}:{span.line}"
    if placed.unfinished:
        return f"{words}; since {seconds(placed.start)}, unfinished"
    return f"{words}; {seconds(placed.start)}, lasting {seconds(placed.end - placed.start)}"


def _lane_name(trace: RankTrace, top: float, height: float) -> str:
    middle = top + height / 2
    return (
        f'<text class="lane" x="0" y="{coordinate(middle + 3)}">rank {trace.rank}'
        f'<tspan class="host" dx="7">{safe(shortened(trace.host, 11))}</tspan></text>'
    )


def _known(kind: str) -> str:
    return kind if kind in (*KINDS, "fault") else "other"
