"""The terminal shows the verdict first, the report last, and lets no control character through."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from grader.report.terminal import show


def shown(result, *, encoding="utf-8", **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
    console = Console(file=stream, width=80, **options)
    show(result, console, Path("runs/latest/report.html"))
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_the_verdict_comes_first_and_the_report_last(make_result):
    lines = shown(make_result("failed")).splitlines()
    assert lines[0] == "Partial, 35 of 70 points: 03 All-reduce over MPI"
    assert lines[-1] == "Report: runs/latest/report.html"


def test_no_line_is_wider_than_the_terminal(any_result):
    assert max(len(line) for line in shown(any_result).splitlines()) <= 80


def test_a_pipe_gets_no_escape_sequences(any_result):
    assert "\x1b" not in shown(any_result)


def test_no_color_keeps_the_words(make_result, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(make_result("timed out"), force_terminal=True)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text)
    assert "Timed out, 20 of 50 points" in re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_only_styles_of_our_own_reach_a_colour_terminal(make_result):
    text = shown(make_result("hostile"), force_terminal=True, color_system="standard")
    rest = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", rest)
    assert "[bold]markup[/bold]" in re.sub(r"\s+", " ", rest)


def test_an_ascii_terminal_gets_escapes_instead_of_an_error(any_result):
    assert shown(any_result, encoding="ascii").isascii()


def test_each_check_that_did_not_pass_says_why(make_result):
    text = shown(make_result("failed"))
    assert "Failed: On 200 Mbit/s links" in text
    for label in ("Expected ", "Got ", "Where ", "Usual cause ", "Next step "):
        assert label in text
    assert re.search(r"time over the bound +2\.03 x +at most 1\.5 x +missed", text)
    assert re.search(r"bytes sent by node1 over the bound +1\.046 x +at most 1\.08 x +kept", text)


def test_a_hang_is_explained(make_result):
    text = re.sub(r"\s+", " ", shown(make_result("timed out")))
    assert "Every rank sends before it receives." in text
    assert "rank 3 waits in Send to rank 0, tag 7, 1.05 MB, solution.py:41" in text
    assert "rank 3 for rank 0: a cycle" in text


def test_unfit_says_that_no_point_is_lost(make_result):
    text = shown(make_result("unfit"))
    assert "No point is lost" in text
    assert "the probe saw 0.2 ms" in text


def test_a_long_message_is_cut_with_a_note(make_result):
    text = shown(make_result("hostile"))
    assert "(more in the report)" in text
    assert len(text.splitlines()) < 120


@pytest.mark.parametrize("name", ["passed", "failed"])
def test_hidden_checks_and_points_are_in_the_table(make_result, name):
    result = make_result(name)
    text = shown(result)
    assert ("(hidden)" in text) == any(check.hidden for check in result.checks)
