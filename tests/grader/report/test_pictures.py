"""Timeline, hang picture and the words beside them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from grader.report import html
from grader.report.bars import figure_bar
from grader.report.hang_picture import hang_svg
from grader.report.hang_words import cycle_in_words, edge_in_words, hang_in_words
from grader.report.lanes import job_end, joined, place
from grader.report.message import Part, parts, without_hangs
from grader.report.plain_text import plain, shortened
from grader.report.quantity import number, quantity, seconds, size
from grader.report.timeline import pattern_defs, timeline_svg
from grader.result import Figure, Hang, JobRecord, RankTrace, Span, WaitEdge


def jobs_of(result):
    return [job for check in result.checks for job in check.jobs]


def test_every_timeline_is_well_formed(any_result):
    ElementTree.fromstring(pattern_defs())
    for job in jobs_of(any_result):
        picture = ElementTree.fromstring(timeline_svg(job, "k", "solution.py"))
        names = [text.text for text in picture.iter("text") if text.get("class") == "lane"]
        assert names == [f"rank {trace.rank}" for trace in job.ranks]


def test_the_number_of_boxes_stays_near_what_was_asked(make_result):
    (job,) = jobs_of(make_result("crowded"))
    assert timeline_svg(job, "k", "solution.py", 500).count("<title") < 1_200


def test_operations_that_overlap_lie_in_different_rows():
    trace = RankTrace(0, "a", (Span("communication", "Isend", 0, 2), Span("compute", "add", 1, 3)))
    assert [one.row for one in place(trace, 3.0)] == [0, 1]


def test_short_operations_are_joined_and_keep_their_shares():
    spans = tuple(Span("wait" if n % 2 else "compute", "op", n, n + 1) for n in range(10))
    (block,) = joined(place(RankTrace(0, "a", spans), 10.0), 100.0)
    assert block.shares == {"compute": pytest.approx(0.5), "wait": pytest.approx(0.5)}


def test_an_unfinished_operation_lasts_to_the_end_of_the_job():
    job = JobRecord("j", (RankTrace(0, "a", (Span("wait", "Recv", 1, None),)),), duration_s=4.0)
    (placed,) = place(job.ranks[0], job_end(job))
    assert (placed.end, placed.unfinished) == (4.0, True)
    assert "since 1 s, unfinished" in timeline_svg(job, "k", "solution.py")


def test_a_fault_shades_the_lanes_of_the_host_it_names(make_result):
    job = jobs_of(make_result("failed"))[0]
    assert timeline_svg(job, "k", "solution.py").count("fault-area") == 2
    everywhere = tuple(replace(fault, target="") for fault in job.faults)
    assert timeline_svg(replace(job, faults=everywhere), "k", "s.py").count("fault-area") == 4


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 12, 24, 60])
def test_every_hang_picture_is_well_formed_or_left_out(ranks):
    edges = tuple(WaitEdge(rank, (rank + 1) % ranks, "Recv", 9) for rank in range(ranks))
    text = hang_svg(Hang("cause", edges, tuple(range(ranks))), "k", "solution.py")
    if ranks > 24:
        assert text == ""
        return
    picture = ElementTree.fromstring(text)
    assert len(picture.findall("g[@class='wait-cycle']")) == ranks
    labels = [text.text for text in picture.iter("text")]
    assert labels.count("Recv, line 9") == ranks


def test_a_small_cycle_among_many_ranks_is_drawn_alone():
    edges = (
        WaitEdge(0, 1, "Recv", 9),
        WaitEdge(1, 0, "Recv", 9),
        *(WaitEdge(rank, 0, "Recv", 9) for rank in range(2, 60)),
    )
    text = hang_svg(Hang("cause", edges, (0, 1)), "k", "solution.py")
    assert text.count('class="wait-cycle"') == 2
    assert 'class="wait-edge"' not in text


def test_a_wait_for_nobody_in_particular_is_drawn():
    text = hang_svg(Hang("cause", (WaitEdge(3, -1, "Barrier", 5),)), "k", "solution.py")
    assert "rank 3 waits in Barrier, solution.py:5" in text
    ElementTree.fromstring(text)


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        (WaitEdge(2, 1, "Recv", 41), "rank 2 waits in Recv from rank 1, solution.py:41"),
        (WaitEdge(2, 1, "Ssend"), "rank 2 waits in Ssend to rank 1"),
        (WaitEdge(2, 1, "Sendrecv", 4), "rank 2 waits in Sendrecv from rank 1, solution.py:4"),
        (WaitEdge(2, 1, "Sendrecv-send"), "rank 2 waits in Sendrecv to rank 1"),
        (WaitEdge(2, -2, "Recv", 4), "rank 2 waits in Recv from any rank, solution.py:4"),
        (WaitEdge(2, 0, "Barrier"), "rank 2 waits in Barrier for rank 0"),
    ],
)
def test_a_wait_in_words(edge, words):
    assert edge_in_words(edge, "solution.py") == words


def test_a_cause_that_tells_each_rank_is_not_told_twice():
    cause = "A cycle of waits: 0 -> 1 -> 0.\nrank 0 waits in Recv.\nrank 1 waits in Recv."
    words = hang_in_words(Hang(cause, (WaitEdge(0, 1, "Recv"),), (0, 1)), "solution.py")
    assert words.cause == "A cycle of waits: 0 -> 1 -> 0."
    assert words.waits == ("rank 0 waits in Recv.", "rank 1 waits in Recv.")
    assert words.cycle == ""
    job = JobRecord("j", hang=Hang(cause))
    assert without_hangs(f"ranks 0, 1 gave no answer. {cause}", (job,)) == (
        "ranks 0, 1 gave no answer."
    )


def test_a_cycle_in_words():
    assert cycle_in_words((2, 1)).startswith("rank 2 waits for rank 1, rank 1 for rank 2: a cycle")
    assert cycle_in_words((5,)) == "rank 5 waits for itself"
    assert cycle_in_words(()) == ""


def test_a_message_is_split_at_its_labels():
    assert parts("Sums differ.\nexpected: 3\n  at rank 1\nNext step: look") == (
        Part("", "Sums differ."),
        Part("Expected", "3\n  at rank 1"),
        Part("Next step", "look"),
    )
    assert parts("Too long. Usual cause: a copy.\nNext step: look") == (
        Part("", "Too long."),
        Part("Usual cause", "a copy."),
        Part("Next step", "look"),
    )
    assert parts("") == ()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\rb\r\nc", "a\nb\nc"),
        ("\x1b]8;;x\x07", "\\x1b]8;;x\\x07"),
        ("\x9b2J\x00", "\\x9b2J\\x00"),
        ("a\u202eb", "a[U+202E]b"),
        ("\ud800", "\ufffd"),
        ("tab\tüñï 漢字 שלום", "tab\tüñï 漢字 שלום"),
    ],
)
def test_plain_text(raw, shown):
    assert plain(raw) == shown


def test_numbers_as_people_read_them():
    assert [seconds(x) for x in (0, 2e-6, 0.0123, 3.25, 125)] == [
        "0 s",
        "2 µs",
        "12.3 ms",
        "3.25 s",
        "2 min 05 s",
    ]
    assert [size(x) for x in (0, 999, 1_048_576, 27_180_000)] == [
        "0 B",
        "999 B",
        "1.05 MB",
        "27.2 MB",
    ]
    assert [number(x) for x in (float("nan"), float("inf"), 1234567.0, 0.021, 1e-9)] == [
        "not a number",
        "infinite",
        "1,234,567",
        "0.021",
        "1.000e-09",
    ]
    assert quantity(1.0457, "x") == "1.046 x"
    assert shortened("a  b\nc", 10) == "a b c"


@pytest.mark.parametrize(
    ("figure", "drawn"),
    [
        (Figure("a", 1.0, "", 2.0), "bar-kept"),
        (Figure("a", 3.0, "", 2.0), "bar-missed"),
        (Figure("a", 3.0, "", 2.0, ">="), "bar-kept"),
        (Figure("a", float("nan"), "", 2.0), ""),
        (Figure("a", 1.0), ""),
        (Figure("a", 0.0, "", 0.0), ""),
    ],
)
def test_a_bar_shows_whether_the_bound_is_kept(figure, drawn):
    text = figure_bar(figure)
    assert drawn in text if drawn else text == ""


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_legible(scheme):
    css = Path(html.__file__).with_name("report.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]
    colour = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    text_pairs = [
        *((ink, ground) for ink in ("ink", "soft", "link") for ground in ("page", "card", "well")),
        *((tone, f"{tone}-wash") for tone in ("good", "bad", "mixed", "neutral", "fault")),
        *((tone, "card") for tone in ("good", "bad", "fault")),
        ("compute-ink", "compute"),
        ("comm-ink", "comm"),
        ("comm-ink", "comm-mark"),
        ("wait-ink", "wait"),
        ("ink", "other"),
    ]
    for ink, ground in text_pairs:
        assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
    for shape in ("compute-edge", "comm", "wait-edge", "fault", "focus", "good", "bad"):
        assert contrast(colour[shape], colour["card"]) >= 3, shape
