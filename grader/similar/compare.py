"""Which submissions have long rows of tokens in common, by copydetect's fingerprints."""

from __future__ import annotations

import io
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from copydetect import CodeFingerprint, compare_files
from copydetect.utils import get_token_coverage

from grader.similar.source import Source
from grader.similar.tokens import Alphabet, Tokens, tokenize

ROW = 16
"""Tokens in a row that both must have."""
LEAST = 60
"""Tokens in common below which a pair is chance: short functions look alike."""
DEFAULT_PERCENT = 40
"""Measured on the right submissions of all packages: 49 pairs written apart have at most 37 % in
common, 11 that share a third of their lines word for word 46 to 99 %, and copies with new names,
order, comments and layout at least 80 %."""


@dataclass(frozen=True)
class Entry:
    """Something to compare. of_class: False for what comes from elsewhere, such as last year."""

    who: str
    source: Source
    of_class: bool = True


@dataclass(frozen=True)
class Passage:
    """Characters of a text that stand in the other one too. other: number (from 0) of the passage
    there in which its beginning stands."""

    start: int
    end: int
    other: int


@dataclass(frozen=True)
class Pair:
    """shares: of each one's own tokens, how many stand in the other one. tokens: how many those
    are in the left one."""

    left: Entry
    right: Entry
    shares: tuple[float, float]
    tokens: int
    passages: tuple[tuple[Passage, ...], tuple[Passage, ...]]

    @property
    def share(self) -> float:
        return max(self.shares)


@dataclass(frozen=True)
class Comparison:
    """pairs: at or above the threshold, most alike first. compared: how many pairs there were.
    too_short: those with too few tokens of their own."""

    pairs: tuple[Pair, ...]
    compared: int
    too_short: tuple[Entry, ...]


@dataclass(frozen=True)
class _Print:
    entry: Entry
    tokens: Tokens
    fingerprint: CodeFingerprint


def compare(entries: Sequence[Entry], boilerplate: Iterable[str], threshold: float) -> Comparison:
    """Compare everybody of the class with everybody else, and with what is not of the class.

    boilerplate: texts that all may have in common. threshold: of the larger share, 0 to 1.
    """
    alphabet = Alphabet()
    common: set[int] = set()
    for text in boilerplate:
        common |= _fingerprint(tokenize(text, alphabet), set()).hashes
    prints = []
    for entry in entries:
        tokens = tokenize(entry.source.text, alphabet)
        prints.append(_Print(entry, tokens, _fingerprint(tokens, common)))
    enough = [one for one in prints if one.fingerprint.token_coverage >= LEAST]
    pairs, compared = [], 0
    for left, right in itertools.combinations(enough, 2):
        if left.entry.who != right.entry.who and (left.entry.of_class or right.entry.of_class):
            compared += 1
            pair = _pair(left, right)
            if pair is not None and pair.share >= threshold:
                pairs.append(pair)
    pairs.sort(key=lambda pair: (-pair.share, -pair.tokens, pair.left.who, pair.right.who))
    too_short = tuple(one.entry for one in prints if one.fingerprint.token_coverage < LEAST)
    return Comparison(tuple(pairs), compared, too_short)


def _fingerprint(tokens: Tokens, common: set[int]) -> CodeFingerprint:
    """All rows of ROW tokens, less those in `common`.

    A window of 1 keeps every row: with a larger one, Python's hashing, which differs from run to
    run, would choose others each time. `common` is taken out here, as copydetect leaves some of it
    where a row occurs twice.
    """
    found = CodeFingerprint(
        "tokens", k=ROW, win_size=1, filter=False, fp=io.StringIO(tokens.row, newline="")
    )
    found.hashes -= common
    found.hash_idx = {h: where for h, where in found.hash_idx.items() if h in found.hashes}
    found.token_coverage = int(get_token_coverage(found.hash_idx, ROW, len(tokens.row)))
    return found


def _pair(left: _Print, right: _Print) -> Pair | None:
    tokens, shares, slices = compare_files(left.fingerprint, right.fingerprint)
    if tokens < LEAST:
        return None
    rows = [sorted((int(a), int(b)) for a, b in np.transpose(part)) for part in slices]
    passages = (
        _passages(left, right, rows[0], rows[1]),
        _passages(right, left, rows[1], rows[0]),
    )
    both = (min(1.0, float(shares[0])), min(1.0, float(shares[1])))
    return Pair(left.entry, right.entry, both, int(tokens), passages)


def _passages(
    mine: _Print, others: _Print, rows: list[tuple[int, int]], other_rows: list[tuple[int, int]]
) -> tuple[Passage, ...]:
    """Rows of tokens as passages of the text, each with its counterpart."""
    starts = [start for start, _ in other_rows]
    found = []
    for start, end in rows:
        row = mine.tokens.row[start : start + ROW]
        at = others.tokens.row.find(row)
        spans = mine.tokens.spans[start:end]
        found.append(Passage(spans[0][0], spans[-1][1], max(0, bisect_right(starts, at) - 1)))
    return tuple(found)
