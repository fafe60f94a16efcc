"""Files of the graded: a folder a learner, and in it one a problem."""

from __future__ import annotations

import hashlib
import urllib.parse
from contextlib import suppress
from pathlib import Path

from grader.batch.journal import Verdict
from grader.report.html import write_html
from grader.result import GradeResult
from grader.result_json import to_json
from grader.whole_file import write_whole

_AWKWARD = set('/\\:*?"<>|%')
_AWKWARD_FIRST = tuple(". -~=+@")
_LONGEST = 200
RESERVED = frozenset({"grades.csv"})
"""Names in the target folder that are no learner's."""


def folder_name(who: str) -> str:
    """A name that every file system and shell takes; `who_of` turns it back.

    Only one beyond 200 bytes is cut, and ends in a digest instead.
    """
    shown = [_plain(character) for character in who]
    if who[:1] in _AWKWARD_FIRST or who in RESERVED:
        shown[0] = _encoded(who[0])
    if who[-1:] in (".", " "):
        shown[-1] = _encoded(who[-1])
    name = "".join(shown)
    if len(name.encode()) <= _LONGEST:
        return name
    cut = name.encode()[: _LONGEST - 13].decode(errors="ignore")
    return f"{cut}~{hashlib.sha256(who.encode()).hexdigest()[:12]}"


def who_of(name: str) -> str:
    """The learner whose folder is called so."""
    return urllib.parse.unquote(name)


def folder_of(target: Path, verdict: Verdict) -> Path:
    return target / folder_name(verdict.who) / verdict.problem


def report_of(target: Path, verdict: Verdict) -> Path:
    """What there is to read; written last."""
    return folder_of(target, verdict) / ("report.html" if verdict.has_result else "message.txt")


def hand_back(target: Path, verdict: Verdict, graded: GradeResult | None) -> None:
    """Write result.json and report.html, or message.txt where there is no result."""
    folder = folder_of(target, verdict)
    folder.mkdir(parents=True, exist_ok=True)
    if graded is not None:
        write_whole(folder / "result.json", to_json(graded))
        partial = folder / ".report.partial"
        write_html(graded, partial)
        partial.replace(folder / "report.html")
        outdated = ["message.txt"]
    else:
        write_whole(folder / "message.txt", f"{verdict.outcome}: {verdict.message}\n")
        outdated = ["result.json", "report.html"]
    for name in outdated:
        with suppress(FileNotFoundError):
            (folder / name).unlink()


def _plain(character: str) -> str:
    safe = character.isprintable() and character not in _AWKWARD
    return character if safe else _encoded(character)


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
