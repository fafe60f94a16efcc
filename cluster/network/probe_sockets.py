"""UDP sockets that lie inside hosts, with the kernel's own arrival times."""

from __future__ import annotations

import contextlib
import socket
import struct

_TIMESTAMP = 35  # SO_TIMESTAMPNS
_SEND_BUFFER, _RECEIVE_BUFFER = 32, 33  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
_BUFFER_BYTES = 16 << 20
_LARGEST = 2_048


def open_datagram(address: str | None) -> socket.socket:
    """A socket in the calling thread's namespace: bound to receive, or without address to send."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)  # cut down to what is allowed
    for option in (_SEND_BUFFER, _RECEIVE_BUFFER):
        with contextlib.suppress(OSError):  # not allowed in a user namespace
            opened.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    if address is not None:
        opened.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)
        opened.bind((address, 0))
    return opened


def receive_all(opened: socket.socket) -> list[tuple[bytes, int]]:
    """Packets that wait, each with the time in ns at which the kernel got it."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            body, extra, _, _ = opened.recvmsg(_LARGEST, 64)
            for _, kind, data in extra:
                if kind == _TIMESTAMP:
                    seconds, nanoseconds = struct.unpack("qq", data[:16])
                    found.append((body, seconds * 1_000_000_000 + nanoseconds))
    return found
