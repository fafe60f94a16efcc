"""A Python text as a row of tokens in which names, numbers and wording no longer count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

_NAME, _NUMBER, _TEXT = "\ue000", "\ue001", "\ue002"
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


@dataclass(frozen=True)
class Tokens:
    """row: one character a token, equal for equal tokens; spans: where in the text each stands."""

    row: str
    spans: tuple[tuple[int, int], ...]


class Alphabet:
    """Gives each keyword, operator and built-in name a character: share one to compare rows."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def letter(self, word: str) -> str:
        return self._known.setdefault(word, chr(0xE100 + len(self._known)))


def tokenize(text: str, alphabet: Alphabet) -> Tokens:
    """The tokens of any text, also of one that Python cannot parse.

    Comments, docstrings and imports are left out. Names that a learner can choose are all the
    same; so are numbers, and so are strings.
    """
    letters: list[str] = []
    spans: list[tuple[int, int]] = []
    for start, word, letter in _told_apart(text, alphabet):
        if letter == _TEXT and letters and letters[-1] == _TEXT and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], start + len(word))
        else:
            letters.append(letter)
            spans.append((start, start + len(word)))
    return Tokens("".join(letters), tuple(spans))


def _told_apart(text: str, alphabet: Alphabet) -> Iterator[tuple[int, str, str]]:
    importing, depth = False, 0
    for start, kind, word in PythonLexer().get_tokens_unprocessed(text):
        if kind in Keyword.Namespace and not importing:
            importing, depth = True, 0
        if importing:
            depth += (word in _OPENING) - (word in _CLOSING)
            importing = not ("\n" in word and depth <= 0 and not word.startswith("\\"))
            continue
        if kind in Comment or kind in String.Doc or not word.strip():
            continue
        if kind in String and kind not in String.Interpol:
            yield start, word, _TEXT
        elif kind in Number:
            yield start, word, _NUMBER
        elif kind in Name.Builtin and kind not in Name.Builtin.Pseudo:
            yield start, word, alphabet.letter(word)
        elif kind in Name:
            yield start, word, _NAME
        elif kind in Keyword or kind in Operator or kind in Punctuation or kind in String:
            for at, sign in enumerate(word if kind in Punctuation else [word]):
                yield start + at, sign, alphabet.letter(sign)
        elif kind not in Text:
            yield start, word, alphabet.letter(word)
