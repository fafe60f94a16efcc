"""Text that came out of a submission, made harmless to show anywhere."""

from __future__ import annotations

import re

_COLOURS = re.compile("\x1b\\[[0-9;:]*m")
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
# Controls; characters that are invisible or turn the direction of text; halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """Without colour codes; every other control or direction character becomes visible."""
    return _UNSAFE.sub(_visible, _LINE_ENDS.sub("\n", _COLOURS.sub("", text)))


def one_line(text: str) -> str:
    return " ".join(plain(text).split())


def shortened(text: str, width: int) -> str:
    """One line of at most `width` characters."""
    line = one_line(text)
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def first_lines(text: str, lines: int, chars: int) -> tuple[str, bool]:
    """The beginning of a long text, and whether something was cut."""
    clean = plain(text).strip("\n")
    kept = "\n".join(clean[:chars].split("\n")[:lines])
    return kept, len(kept) < len(clean)


def last_chars(text: str, chars: int) -> tuple[str, int]:
    """The end of a long text, and how many characters before it were left out."""
    return plain(text[-chars:]) if chars > 0 else "", max(len(text) - chars, 0)


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return "\N{REPLACEMENT CHARACTER}"
    return f"[U+{code:04X}]"
