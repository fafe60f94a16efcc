"""The HTML page of `distlab similar`: one file that asks the network for nothing."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from grader.package import Problem
from grader.report.plain_text import one_line, plain
from grader.report.policy import policy
from grader.report.quantity import counted
from grader.similar.compare import Comparison, Pair, Passage
from grader.similar.source import Source

MOST_SHOWN = 60
"""Pairs shown side by side; the table has all."""
_AROUND = 3  # lines around a passage
_WORTH_FOLDING = 8  # lines
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Line:
    """number and place are empty for a fold, whose html says how many lines it stands for."""

    number: str
    html: Markup
    fold: bool = False
    matched: bool = False


@dataclass(frozen=True)
class Side:
    who: str
    share: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class PairView:
    key: str
    problem: Problem
    tokens: int
    sides: tuple[Side, Side]
    shown: bool


@dataclass(frozen=True)
class Found:
    """What was found for one problem."""

    problem: Problem
    comparison: Comparison


def render(found: Sequence[Found], threshold: int, remarks: Sequence[str]) -> str:
    """The whole page. remarks: what a reader must know about entries that are not in it."""
    css = (_HERE / "page.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        pairs=tuple(_views(found)),
        problems=[entry.problem for entry in found],
        compared=counted(sum(entry.comparison.compared for entry in found), "pair"),
        threshold=threshold,
        remarks=[one_line(remark) for remark in remarks],
        most_shown=MOST_SHOWN,
        css=Markup(css),
        policy=policy(css),
    )


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _views(found: Sequence[Found]) -> Iterator[PairView]:
    number = 0
    for entry in found:
        for pair in entry.comparison.pairs:
            number += 1
            key, shown = f"pair-{number}", number <= MOST_SHOWN
            sides = (_side(pair, 0, key, shown), _side(pair, 1, key, shown))
            yield PairView(key, entry.problem, pair.tokens, sides, shown)


def _side(pair: Pair, which: int, key: str, shown: bool) -> Side:
    entry = (pair.left, pair.right)[which]
    lines: tuple[Line, ...] = ()
    if shown:
        lines = tuple(_lines(entry.source, pair.passages[which], f"{key}-{'ab'[which]}"))
    return Side(one_line(entry.who), percent(pair.shares[which]), lines)


def _lines(source: Source, passages: Sequence[Passage], key: str) -> Iterator[Line]:
    """The text with its passages marked, and long stretches without any folded."""
    texts = source.text.removesuffix("\n").split("\n")
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text) + 1)
    marked = {
        line
        for passage in passages
        for line in range(_line_at(starts, passage.start), _line_at(starts, passage.end - 1) + 1)
    }
    near = {n for line in marked for n in range(line - _AROUND, line + _AROUND + 1)}
    names = dict(source.files) if len(source.files) > 1 else {}
    at = 0
    while at < len(texts):
        rest = range(at, len(texts))
        stop = next((n for n in rest if n in near or (n in names and n > at)), len(texts))
        if at in names:
            yield Line("", Markup("<b>{}</b>").format(plain(names[at])), fold=True)
        if stop - at >= _WORTH_FOLDING:
            yield Line("", escape(f"{stop - at} lines that are not in both"), fold=True)
        else:
            stop = max(stop, at + 1)
            for n in range(at, stop):
                html = _marked(texts[n], starts[n], passages, key)
                number = source.place(n).rpartition(":")[2]
                yield Line(number, html, matched=n in marked)
        at = stop


def _line_at(starts: Sequence[int], character: int) -> int:
    return bisect.bisect_right(starts, character) - 1


def _marked(text: str, start: int, passages: Sequence[Passage], key: str) -> Markup:
    """One line, escaped; where a passage begins, a link to where it begins in the other text."""
    html, at, end = Markup(), 0, len(text)
    other = key[:-1] + ("b" if key.endswith("a") else "a")
    for number, passage in enumerate(passages):
        indent = len(text) - len(text.lstrip())
        first, last = max(passage.start - start, at, indent), min(passage.end - start, end)
        if first >= last:
            continue
        html += escape(plain(text[at:first]))
        if passage.start >= start:
            html += Markup(
                '<a class="jump" id="{}-{}" href="#{}-{}" aria-label="passage {}, go to it in the '
                'other text">{}</a>'
            ).format(key, number + 1, other, passage.other + 1, number + 1, number + 1)
        html += Markup("<mark>{}</mark>").format(plain(text[first:last]))
        if passage.end <= start + end:
            html += Markup('<span class="unseen"> (passage {} ends)</span>').format(number + 1)
        at = last
    return html + escape(plain(text[at:]))
