"""Python byte code, told apart by what its functions do: names of files and lines do not count."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import marshal
from collections.abc import Iterator
from types import CodeType

_HEADER = 16
_HIGH_BYTES = (0x0C, 0x0D, 0x0E, 0x0F, 0xF2, 0xF3)  # of the version numbers of Python 3 and 2.7
_LEAST = 60  # bytes of instructions: shorter functions look alike by chance


class ForeignByteCode(ValueError):
    """Byte code that this Python cannot read."""


def is_byte_code(content: bytes) -> bool:
    """Whether it begins as a .pyc file does."""
    return len(content) > _HEADER and content[2:4] == b"\r\n" and content[1] in _HIGH_BYTES


def prints_of_byte_code(content: bytes) -> set[str]:
    """A digest of each function in a .pyc file. Raises ForeignByteCode."""
    if content[:4] != importlib.util.MAGIC_NUMBER:
        raise ForeignByteCode("made by another version of Python")
    try:
        code = marshal.loads(content[_HEADER:])
    except (EOFError, ValueError, TypeError):
        raise ForeignByteCode("damaged") from None
    return set(_prints(code)) if isinstance(code, CodeType) else set()


def prints_of_source(source: bytes) -> set[str]:
    """A digest of each function, as compiled with and without asserts and docstrings."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    levels = (compile(tree, "", "exec", dont_inherit=True, optimize=n) for n in (0, 1, 2))
    return {found for code in levels for found in _prints(code)}


def _prints(code: CodeType) -> Iterator[str]:
    if len(code.co_code) >= _LEAST:
        parts = (code.co_code, code.co_names, code.co_varnames, _plain(code.co_consts))
        yield hashlib.sha256(repr(parts).encode(errors="replace")).hexdigest()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _prints(constant)


def _plain(constant: object) -> object:
    """Constants in an order that is always the same, without the functions among them."""
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    if isinstance(constant, tuple):
        return [_plain(part) for part in constant]
    return "code" if isinstance(constant, CodeType) else constant
