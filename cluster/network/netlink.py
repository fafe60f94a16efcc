"""Raw rtnetlink conversations. Imports next to nothing: it also runs inside the guest kernel,
where every system call costs several microseconds and every import some milliseconds."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("IHHII")
_ERROR, _DONE = 2, 3
_FLAG_MULTI = 2
_RECEIVE_BYTES = 1 << 17


class NetlinkRefused(OSError):
    """The kernel refused a request; `position` counts the requests of the batch from 0."""

    def __init__(self, number: int, position: int) -> None:
        super().__init__(number, os.strerror(number))
        self.position = position


def open_route_socket() -> socket.socket:
    """An rtnetlink socket into the network namespace that the calling thread is in."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    opened.bind((0, 0))
    return opened


def split(data: bytes) -> Iterator[bytes]:
    """Cut a buffer into the netlink messages that lie in it."""
    at = 0
    while at + _HEADER.size <= len(data):
        length = _HEADER.unpack_from(data, at)[0]
        if length < _HEADER.size:
            return
        yield data[at : at + length]
        at += (length + 3) & ~3


def converse(opened: socket.socket, requests: bytes) -> bytes:
    """Send the requests one after another; return all answers, acknowledgements left out.

    Raises NetlinkRefused at the first request that the kernel refuses, the rest being unsent.
    """
    answers = []
    for position, request in enumerate(split(requests)):
        _length, _type, _flags, sequence, _pid = _HEADER.unpack_from(request)
        opened.send(request)
        finished = False
        while not finished:
            for answer in split(opened.recv(_RECEIVE_BYTES)):
                _length, kind, _flags, answered, _pid = _HEADER.unpack_from(answer)
                if answered != sequence:
                    continue
                if kind == _ERROR:
                    number = -struct.unpack_from("i", answer, _HEADER.size)[0]
                    if number:
                        raise NetlinkRefused(number, position)
                    finished = True
                elif kind == _DONE:
                    finished = True
                else:
                    answers.append(answer.ljust((len(answer) + 3) & ~3, b"\0"))
    return b"".join(answers)
