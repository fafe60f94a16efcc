"""The page is well formed, self-contained, harmless whatever it shows, and not too large."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from grader.report.html import render, replay_command, with_code, write_html

VOID = {"meta", "link", "br", "img", "hr", "input"}
SELF_CLOSING = {"path", "rect", "circle"}
KNOWN_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "footer", "main", "section"),
    *("svg", "defs", "pattern", "rect", "circle", "path", "g", "text", "tspan", "desc"),
    *("figure", "figcaption", "details", "summary", "h1", "h2", "h3", "h4", "h5", "p", "span"),
    *("strong", "code", "pre", "a", "ul", "li", "dl", "dt", "dd", "div"),
    *("table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"),
}


class Page(HTMLParser):
    """Fails on anything that is not properly nested; collects what tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.attributes, self.text = [], [], set(), [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), self.get_starttag_text()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in SELF_CLOSING
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data


def test_every_page_is_well_formed_with_known_tags_only(any_result):
    page = Page(render(any_result))
    assert page.tags <= KNOWN_TAGS
    assert len(page.ids) == len(set(page.ids))


def test_no_page_asks_for_anything_outside_itself(any_result):
    text = render(any_result)
    page = Page(text)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "srcset", "style", "action", "data", "xlink:href"), (tag, name)
        if name == "href":
            assert value.startswith("#") and value[1:] in page.ids
    css = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "@import" not in css
    assert set(re.findall(r"url\((.)", css)) <= {"#"}
    assert "http:" not in text and "https:" not in text


def test_the_policy_allows_the_one_style_sheet_and_nothing_else(make_result):
    text = render(make_result("failed"))
    css = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = next(v for t, n, v in Page(text).attributes if n == "content" and "src" in v)
    assert policy.startswith("default-src 'none';")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_labels_and_descriptions_refer_to_what_is_there(any_result):
    page = Page(render(any_result))
    for _, name, value in page.attributes:
        if name == "aria-labelledby":
            assert set(value.split()) <= set(page.ids)


def test_every_table_has_a_caption_and_scopes(make_result):
    text = render(make_result("timed out"))
    assert text.count("<table") == text.count("<caption>")
    assert not re.search(r"<th(?![^>]*scope=)(?!ead)", text)


def test_hostile_text_becomes_words(make_result):
    text = render(make_result("hostile"))
    assert "<img" not in text and "</script" not in text
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    assert "{{ 7 * 7 }}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b]", text)
    assert "[U+202E]" in text
    text.encode("utf-8")


def test_the_hang_is_in_words_as_well_as_in_the_picture(make_result):
    page = Page(render(make_result("timed out")))
    words = "rank 2 waits in Send to rank 3, tag 7, 1.05 MB, solution.py:41"
    assert words in page.text["li"]
    assert words in page.text["desc"]
    assert "a cycle" in page.text["p"]


def test_the_figures_stand_against_their_bounds(make_result):
    page = Page(render(make_result("failed")))
    assert "2.03 x" in page.text["td"]
    assert "at most 1.5 x" in page.text["td"]
    assert "missed" in page.text["span"]


def test_the_parts_of_a_message_are_labelled(make_result):
    page = Page(render(make_result("failed")))
    for label in ("Expected", "Got", "Where", "Usual cause", "Next step"):
        assert label in page.text["p"]
    assert "distlab test 03 --trace" in page.text["code"]


def test_checks_that_did_not_pass_stand_open(make_result):
    text = render(make_result("failed"))
    assert len(re.findall(r'<details class="check \w+" open>', text)) == 1
    assert len(re.findall(r'<details class="check \w+">', text)) == 3


def test_the_command_to_replay_is_quoted(make_result, hostile_text):
    assert replay_command(make_result("passed")) == (
        "distlab grade 03 work/solution.py --seed 98127340981723409817234098172340"
    )
    assert replay_command(make_result("hostile")).startswith("distlab grade 07 '</script>")


@pytest.mark.parametrize("name", ["crowded", "hostile"])
def test_the_page_stays_small(make_result, name, tmp_path):
    path = tmp_path / "report with spaces.html"
    write_html(make_result(name), path)
    assert path.stat().st_size < 1_500_000


def test_code_between_backticks_is_escaped():
    assert with_code("run `a <b>` & go") == "run <code>a &lt;b&gt;</code> &amp; go"
