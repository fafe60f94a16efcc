"""The waits of a hang as SVG: ranks on a circle, an arrow to whom each waits for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from grader.report.hang_words import cycle_in_words, edge_in_words, in_cycle
from grader.report.plain_text import one_line, shortened
from grader.result import Hang, WaitEdge

NODE = 21
MAX_NODES = 24
MAX_LABELS = 24
MARGIN_X = 150
MARGIN_Y = 52


@dataclass(frozen=True)
class _Point:
    x: float
    y: float

    def towards(self, other: _Point, distance: float) -> _Point:
        length = math.hypot(other.x - self.x, other.y - self.y) or 1.0
        return _Point(
            self.x + (other.x - self.x) / length * distance,
            self.y + (other.y - self.y) / length * distance,
        )


def hang_svg(hang: Hang, key: str, source: str) -> str:
    """key: unique on the page. Empty where no wait is known or there are too many ranks to draw."""
    edges = hang.edges
    ranks = _ranks(hang, edges)
    if len(ranks) > MAX_NODES and hang.cycle:
        edges = tuple(edge for edge in edges if in_cycle(hang, edge))
        ranks = sorted(set(hang.cycle))
    if not edges or len(ranks) > MAX_NODES:
        return ""
    radius = 108 + 7 * max(len(ranks) - 3, 0)
    centre = _Point(radius + MARGIN_X, radius + MARGIN_Y)
    nodes = _on_circle(ranks, centre, radius)
    labelled = len(edges) <= MAX_LABELS
    pieces = [
        _arrow(edge, nodes, centre, cyclic=in_cycle(hang, edge), source=source, labelled=labelled)
        for edge in sorted(edges, key=lambda edge: in_cycle(hang, edge))
    ]
    pieces += [_node(rank, spot, rank in hang.cycle) for rank, spot in nodes.items()]
    width, height = 2 * centre.x, 2 * centre.y
    words = ". ".join(
        [*(edge_in_words(edge, source) for edge in edges), cycle_in_words(hang.cycle)]
    )
    return (
        f'<svg class="hang" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">Who waits for whom</title>'
        f'<desc id="{key}-d">{escape(one_line(words))}</desc>' + "".join(pieces) + "</svg>"
    )


def _ranks(hang: Hang, edges: tuple[WaitEdge, ...]) -> list[int]:
    """The cycle first and in its own order, so that its arrows go round the circle."""
    others = {edge.rank for edge in edges} | {edge.peer for edge in edges if edge.peer >= 0}
    cycle = list(dict.fromkeys(hang.cycle))
    return cycle + sorted(others - set(cycle))


def _on_circle(ranks: list[int], centre: _Point, radius: float) -> dict[int, _Point]:
    spots: dict[int, _Point] = {}
    for place, rank in enumerate(ranks):
        angle = -math.pi / 2 + 2 * math.pi * place / len(ranks)
        spots[rank] = _Point(
            centre.x + radius * math.cos(angle), centre.y + radius * math.sin(angle)
        )
    return spots


def _arrow(
    edge: WaitEdge,
    nodes: dict[int, _Point],
    centre: _Point,
    *,
    cyclic: bool,
    source: str,
    labelled: bool,
) -> str:
    """From the waiting rank to its peer, bent to the left so that two ways do not meet."""
    begin = nodes[edge.rank]
    end = nodes.get(edge.peer) if edge.peer != edge.rank else None
    if end is None:
        end = begin.towards(centre, 3.1 * NODE)
        bend = _Point((begin.x + end.x) / 2, (begin.y + end.y) / 2)
        head = end
        tail = begin.towards(end, NODE)
    else:
        length = math.hypot(end.x - begin.x, end.y - begin.y)
        bend = _Point(
            (begin.x + end.x) / 2 + (end.y - begin.y) / length * 0.22 * length,
            (begin.y + end.y) / 2 - (end.x - begin.x) / length * 0.22 * length,
        )
        tail = begin.towards(bend, NODE)
        head = end.towards(bend, NODE + 3)
    style = "wait-cycle" if cyclic else "wait-edge"
    title = escape(edge_in_words(edge, source))
    curve = (
        f'<g class="{style}"><title>{title}</title>'
        f'<path class="line" d="M{tail.x:.1f} {tail.y:.1f}'
        f'Q{bend.x:.1f} {bend.y:.1f} {head.x:.1f} {head.y:.1f}"/>{_head(bend, head)}'
    )
    return curve + (_label(edge, tail, bend, head, centre) if labelled else "") + "</g>"


def _head(bend: _Point, tip: _Point) -> str:
    base = tip.towards(bend, 10)
    across = _Point(tip.y - base.y, base.x - tip.x)
    left = _Point(base.x + across.x * 0.48, base.y + across.y * 0.48)
    right = _Point(base.x - across.x * 0.48, base.y - across.y * 0.48)
    return (
        f'<path class="head" d="M{tip.x:.1f} {tip.y:.1f}L{left.x:.1f} {left.y:.1f}'
        f'L{right.x:.1f} {right.y:.1f}z"/>'
    )


def _label(edge: WaitEdge, tail: _Point, bend: _Point, head: _Point, centre: _Point) -> str:
    """On the outer side of the arrow's middle, or of the rank if that leads to nobody."""
    middle = _Point(
        tail.x / 4 + bend.x / 2 + head.x / 4,
        tail.y / 4 + bend.y / 2 + head.y / 4,
    )
    if edge.peer < 0 or edge.peer == edge.rank:
        middle = centre.towards(tail, math.hypot(tail.x - centre.x, tail.y - centre.y) + 2 * NODE)
    spot = centre.towards(middle, math.hypot(middle.x - centre.x, middle.y - centre.y) + 8)
    sideways = (spot.x - centre.x) / max(math.hypot(spot.x - centre.x, spot.y - centre.y), 1.0)
    anchor = "middle" if abs(sideways) < 0.12 else "start" if sideways > 0 else "end"
    drop = 4 + 6 * (spot.y - centre.y) / max(abs(spot.y - centre.y), 40.0)
    text = shortened(edge.operation, 16) + (f", line {edge.line}" if edge.line > 0 else "")
    return (
        f'<text x="{spot.x:.1f}" y="{spot.y + drop:.1f}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _node(rank: int, spot: _Point, cyclic: bool) -> str:
    style = "node node-cycle" if cyclic else "node"
    return (
        f'<g class="{style}"><circle cx="{spot.x:.1f}" cy="{spot.y:.1f}" r="{NODE}"/>'
        f'<text class="small" x="{spot.x:.1f}" y="{spot.y - 5:.1f}">rank</text>'
        f'<text class="big" x="{spot.x:.1f}" y="{spot.y + 10:.1f}">{rank}</text></g>'
    )
