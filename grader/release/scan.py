"""Look for the private half in a folder, wherever it may hide."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.release.byte_code import ForeignByteCode, is_byte_code, prints_of_byte_code
from grader.release.pieces import Piece, Sealed, pieces
from grader.release.private_half import RUN, Place, PrivateHalf, runs

_WORD = re.compile(r"[A-Za-z_]\w{6,}")
_SECRETS = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}"),
    "an access key of AWS": re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    "a token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,})"),
    "a token of GitLab": re.compile(r"\bglpat-[\w-]{20}"),
    "a token of Slack": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{20}"),
    "a token of an AI service": re.compile(r"\b(?:hf_|sk-)[A-Za-z0-9_-]{32}"),
    "a password in a URL": re.compile(r"\b[a-z]+://[^\s/:@\"'{}<>]+:[^\s/:@\"'{}<>]{4,}@[\w.-]+"),
}


@dataclass(frozen=True)
class Finding:
    """Something that must not be there. line: 0 where there are no lines."""

    where: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.where}{f':{self.line}' if self.line else ''} {self.what}"


def scan(folder: Path, private: PrivateHalf) -> list[Finding]:
    """What of the private half is in `folder`; what cannot be looked into is a finding too."""
    found = []
    for piece in pieces(folder):
        if isinstance(piece, Sealed):
            found.append(Finding(piece.where, 0, piece.why))
        else:
            found += _in_piece(piece, private)
    return found


def _in_piece(piece: Piece, private: PrivateHalf) -> Iterator[Finding]:
    for word in sorted(set(_WORD.findall(piece.where)) & private.words.keys()):
        yield Finding(piece.where, 0, f"is named like {_shown(private.words[word])}")
    whole = private.digests.get(hashlib.sha256(piece.content).hexdigest())
    if whole is not None:
        yield Finding(piece.where, 0, f"is {whole}")
        return
    if is_byte_code(piece.content):
        yield from _in_byte_code(piece, private)
    text = _text(piece.content)
    yield from _lines(piece.where, text, private)
    for word in sorted(set(_WORD.findall(text)) & private.words.keys()):
        what = f"says {word}, the name of {_shown(private.words[word])}"
        yield Finding(piece.where, _line_of(text, text.index(word)), what)
    yield from _titles(piece.where, text, private)
    for name, pattern in _SECRETS.items():
        if match := pattern.search(text):
            yield Finding(piece.where, _line_of(text, match.start()), f"looks like {name}")


def _lines(where: str, text: str, private: PrivateHalf) -> Iterator[Finding]:
    """One finding a private file: where its lines begin, and how many runs there are."""
    first: dict[str, tuple[int, Place]] = {}
    counts: Counter[str] = Counter()
    for line, run in runs(text):
        place = private.runs.get(run)
        if place is not None:
            first.setdefault(place.path, (line, place))
            counts[place.path] += 1
    for path, (line, place) in first.items():
        at_least = counts[path] + RUN - 1
        yield Finding(where, line, f"has {at_least} lines or more of {_shown(place)}")


def _titles(where: str, text: str, private: PrivateHalf) -> Iterator[Finding]:
    joined = " ".join(text.split())
    for title, place in private.titles.items():
        if title in joined:
            found = re.search(r"\s+".join(map(re.escape, title.split())), text)
            line = _line_of(text, found.start()) if found else 0
            yield Finding(where, line, f"has the title of the hidden check at {_shown(place)}")


def _in_byte_code(piece: Piece, private: PrivateHalf) -> Iterator[Finding]:
    try:
        prints = prints_of_byte_code(piece.content)
    except ForeignByteCode as error:
        yield Finding(piece.where, 0, f"is byte code that cannot be read here: {error}")
        return
    for path in sorted({private.code[digest] for digest in prints & private.code.keys()}):
        yield Finding(piece.where, 0, f"is byte code with a function of {path}")


def _text(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if content[1:400:2].count(0) > len(content[1:400:2]) // 2:
        return content.decode("utf-16-le", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _shown(place: Place) -> str:
    return f"{place.path}:{place.line}"
