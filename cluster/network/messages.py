"""Encoding of any pyroute2 message for a raw rtnetlink socket."""

from __future__ import annotations

from itertools import count
from typing import Any

from pyroute2.netlink import NLM_F_REQUEST

_sequence = count(1)


def encode(message: Any, kind: int, flags: int) -> bytes:
    """Bytes of a message, with a fresh sequence number in its header."""
    message["header"]["type"] = kind
    message["header"]["flags"] = flags | NLM_F_REQUEST
    message["header"]["sequence_number"] = next(_sequence) & 0x7FFFFFFF
    message.encode()
    return bytes(message.data).ljust((len(message.data) + 3) & ~3, b"\0")
