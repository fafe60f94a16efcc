"""What a link carried, as the kernel counted it outside the sandbox; and offloads off, so that one
counted packet is one packet on the wire."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from cluster.network import links
from cluster.network.errors import EngineError
from cluster.network.namespaces import in_netns
from cluster.network.netlink import NetlinkRefused, converse, open_route_socket

_LINK_HEADERS = 16 + 16  # struct nlmsghdr, struct ifinfomsg
_ATTRIBUTE = struct.Struct("HH")
_STATS64 = 23
_SIOCETHTOOL = 0x8946
_SET_TSO, _SET_GSO, _SET_GRO = 0x1F, 0x24, 0x2C


@dataclass(frozen=True)
class LinkCounters:
    """Bytes (Ethernet headers included) and packets of one interface since it was made."""

    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int
    dropped: int
    """Packets dropped by the interface itself, not by a fault on the way."""

    def __sub__(self, earlier: LinkCounters) -> LinkCounters:
        """What passed between two readings."""
        return LinkCounters(
            self.tx_bytes - earlier.tx_bytes,
            self.tx_packets - earlier.tx_packets,
            self.rx_bytes - earlier.rx_bytes,
            self.rx_packets - earlier.rx_packets,
            self.dropped - earlier.dropped,
        )


class LinkMeter:
    """Reads one host's interfaces again and again, at some 50 us a reading."""

    def __init__(self, netns: int | str | Path) -> None:
        """`netns` is an open namespace file, its path, or its name. Raises EngineError."""
        self._requests: dict[str, bytes] = {}
        try:
            self._socket = in_netns(netns, open_route_socket)
        except OSError as error:
            raise EngineError(f"network namespace {netns} cannot be entered: {error}") from error

    def read(self, ifname: str) -> LinkCounters:
        """Counters of one interface. Raises EngineError when there is none of that name."""
        try:
            if ifname not in self._requests:  # encoding takes longer than asking
                self._requests[ifname] = links.get_link(ifname)
            return _counters(converse(self._socket, self._requests[ifname]))
        except NetlinkRefused as refusal:
            raise EngineError(f"no counters of {ifname}: {refusal.strerror}") from refusal

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def _counters(message: bytes) -> LinkCounters:
    """Read struct rtnl_link_stats64 out of a link message, without decoding all the rest of it."""
    at = _LINK_HEADERS
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _STATS64:
            numbers = struct.unpack_from("8Q", message, at + _ATTRIBUTE.size)
            rx_packets, tx_packets, rx_bytes, tx_bytes, _, _, rx_dropped, tx_dropped = numbers
            return LinkCounters(tx_bytes, tx_packets, rx_bytes, rx_packets, rx_dropped + tx_dropped)
        if length < _ATTRIBUTE.size:
            break
        at += (length + 3) & ~3
    raise EngineError("the kernel reports no counters of this link")


def read_counters(netns: int | str | Path, ifname: str) -> LinkCounters:
    """Counters of one interface, read once. Raises EngineError."""
    meter = LinkMeter(netns)
    try:
        return meter.read(ifname)
    finally:
        meter.close()


def disable_offload(netns: int | str | Path, ifname: str) -> None:
    """Turn segmentation and receive offload of an interface off. Raises EngineError.

    Offloads on, one packet of the kernel's is up to 64 kB: one lost packet is then 44 lost, and
    packet counts mean nothing.
    """

    def switch_off() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for command in (_SET_TSO, _SET_GSO, _SET_GRO):
                value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
                request = struct.pack("16sP", ifname.encode(), ctypes.addressof(value))
                fcntl.ioctl(control, _SIOCETHTOOL, request)

    try:
        in_netns(netns, switch_off)
    except OSError as error:
        raise EngineError(f"offloads of {ifname} cannot be turned off: {error}") from error
