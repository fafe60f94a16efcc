"""See on the wire which collectives of Open MPI are at work, without the ranks' help.

A collective is made of messages whose tags are negative, which no program can choose for its own.
They are read here from the heads of packets, on the switch's side of the hosts' links. The kernel
drops all other packets, so watching costs next to nothing.

The layout is that of Open MPI 5 (btl/tcp and pml/ob1): one byte 0x41 for a short message or 0x42
for the first part of a long one, 0x01, two of padding, four of length, and then the match header
with the tag at byte 16. A message is overlooked when the kernel sends it in one piece with another
one before it; a collective has many. Messages between ranks of one host are not seen.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.network.namespaces import in_netns

_ETH_P_IP = 0x0800
_ETH_P_ALL = 0x0003
_SO_ATTACH_FILTER = 26
_SNAPPED = 160
_MATCH_BYTES = 14

# coll_tags.h of Open MPI 5.0, with what else is built of the operation that has the tag.
_SOURCES = {
    -10: ("Allgather",),
    -11: ("Allgatherv",),
    -12: ("Allreduce",),
    -13: ("Alltoall",),
    -14: ("Alltoallv",),
    -15: ("Alltoallw",),
    -16: ("Barrier",),
    -17: ("Bcast", "Allreduce", "Allgather", "Allgatherv"),
    -18: ("Exscan",),
    -19: ("Gather", "Allgather"),
    -20: ("Gatherv", "Allgatherv"),
    -21: ("Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block"),
    -22: ("Reduce_scatter", "Reduce_scatter_block", "Reduce", "Allreduce"),
    -23: ("Scan",),
    -24: ("Scatter", "Reduce_scatter_block", "Bcast"),
    -25: ("Scatterv", "Reduce_scatter"),
}
# Non-blocking, persistent and neighbourhood ones draw their tags from one range.
_UNNAMED = (
    *("Iallgather", "Iallreduce", "Ialltoall", "Ibcast", "Igather", "Ireduce", "Iscatter", "Iscan"),
    *("Allreduce_init", "Bcast_init", "Allgather_init", "Alltoall_init"),
    *("Neighbor_allgather", "Neighbor_alltoall"),
)
_LEAST_TAG, _GREATEST_TAG = -2000, -10
# Making a communicator takes an Allgather and non-blocking collectives of a few numbers a rank, and
# the first use of one an Allreduce of a single number.
_HOUSEKEEPING_BYTES, _FIRST_USE = 256, (-12, 4)


@dataclass(frozen=True)
class CollectiveMessage:
    """One message of a collective. size: payload in bytes, of which this may be the first part."""

    tag: int
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        """The calls that it can come from, the likeliest first."""
        return _SOURCES.get(self.tag, _UNNAMED)

    @property
    def housekeeping(self) -> bool:
        """Whether it may come from making a communicator, and not from one of `sources`."""
        if (self.tag, self.size) == _FIRST_USE:
            return True
        unnamed = self.tag not in _SOURCES
        return (unnamed or self.tag in (-10, -11)) and self.size < _HOUSEKEEPING_BYTES


class MessageWatch:
    """Watches network interfaces. Raises OSError where that is not allowed."""

    def __init__(self, interfaces: Sequence[str], netns: int | None = None) -> None:
        """netns: an open file that stands for the interfaces' namespace; None for the caller's."""
        self._sockets: list[socket.socket] = []
        try:
            if netns is None:
                self._open(interfaces)
            else:
                in_netns(netns, lambda: self._open(interfaces))
        except OSError:
            self.close()
            raise

    def _open(self, interfaces: Sequence[str]) -> None:
        program = _filter()
        for name in interfaces:
            # Protocol 0: nothing is received before the filter is in place.
            channel = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._sockets.append(channel)
            channel.setblocking(False)
            _attach(channel, program)
            channel.bind((name, _ETH_P_ALL))

    def seen(self) -> list[CollectiveMessage]:
        """The messages since the last call, at most some hundreds a link."""
        found = []
        for channel in self._sockets:
            while True:
                try:
                    packet = channel.recv(_SNAPPED)
                except BlockingIOError:
                    break
                except OSError:  # the interface went down
                    break
                message = parse(packet)
                if message is not None:
                    found.append(message)
        return found

    def close(self) -> None:
        """Does not wait: the kernel takes 10 ms and more to forget a socket of this kind."""
        threading.Thread(target=_close, args=(self._sockets,)).start()
        self._sockets = []


def _close(sockets: Sequence[socket.socket]) -> None:
    for channel in sockets:
        channel.close()


def parse(packet: bytes) -> CollectiveMessage | None:
    """The message of a collective at the head of an Ethernet frame, if there is one."""
    if len(packet) < 54 or packet[12:14] != struct.pack("!H", _ETH_P_IP) or packet[23] != 6:
        return None
    tcp = 14 + (packet[14] & 15) * 4
    if len(packet) <= tcp + 12:
        return None
    head = packet[tcp + (packet[tcp + 12] >> 4) * 4 :][:20]
    if len(head) < 20 or head[0] not in (0x41, 0x42) or head[1] != 1 or head[8] != head[0]:
        return None
    (tag,) = struct.unpack_from("<i", head, 16)
    (size,) = struct.unpack_from("<I", head, 4)
    if not _LEAST_TAG <= tag <= _GREATEST_TAG:
        return None
    # A long message's first part holds no data, and is always more than housekeeping.
    payload = size - _MATCH_BYTES if head[0] == 0x41 else 1 << 16
    return CollectiveMessage(tag, payload)


def _filter() -> list[tuple[int, int, int, int]]:
    """Classic BPF: TCP over IPv4 whose data begin like a message with a negative tag."""
    load_half, load_byte, load_byte_x, load_ip_length = 0x28, 0x30, 0x50, 0xB1
    equal, shift_right, shift_left, add_x, to_x, ret = 0x15, 0x74, 0x64, 0x0C, 0x07, 0x06
    tests = [
        (load_half, 0, 0, 12),
        (equal, 0, -1, _ETH_P_IP),
        (load_byte, 0, 0, 23),
        (equal, 0, -1, 6),
        (load_ip_length, 0, 0, 14),  # x = length of the IP header
        (load_byte_x, 0, 0, 14 + 12),
        (shift_right, 0, 0, 4),
        (shift_left, 0, 0, 2),
        (add_x, 0, 0, 0),
        (to_x, 0, 0, 0),  # x = both headers' length
        (load_byte_x, 0, 0, 14 + 1),
        (equal, 0, -1, 0x01),
        (load_byte_x, 0, 0, 14 + 19),
        (equal, 0, -1, 0xFF),
        (load_byte_x, 0, 0, 14),
        (equal, 1, 0, 0x41),
        (equal, 0, -1, 0x42),
        (ret, 0, 0, _SNAPPED),
        (ret, 0, 0, 0),
    ]
    last = len(tests) - 1
    return [
        (code, yes, last - at - 1 if no < 0 else no, value)
        for at, (code, yes, no, value) in enumerate(tests)
    ]


def _attach(channel: socket.socket, program: Sequence[tuple[int, int, int, int]]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    channel.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
