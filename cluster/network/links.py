"""Network interfaces as rtnetlink messages, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE
from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_NEWNEIGH
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from cluster.network.messages import encode

_UP = 1
_NO_ADDRESS = 1
_AF_BRIDGE = 7
_STATIC = 0x40
_OF_MASTER = 4


def _new(message: Any) -> bytes:
    return encode(message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK)


def add_bridge(name: str, mtu: int) -> bytes:
    """A bridge without multicast snooping, which would send queries of its own."""
    message = ifinfmsg()
    data = {"attrs": [("IFLA_BR_MCAST_SNOOPING", 0)]}
    info = {"attrs": [("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", data)]}
    message["attrs"] = [("IFLA_IFNAME", name), ("IFLA_MTU", mtu), ("IFLA_LINKINFO", info)]
    return _new(message)


def add_veth(name: str, peer: str, mtu: int) -> bytes:
    """A pair of connected interfaces."""
    message, other = ifinfmsg(), {"attrs": [("IFLA_IFNAME", peer), ("IFLA_MTU", mtu)]}
    data = {"attrs": [("VETH_INFO_PEER", other)]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    message["attrs"] = [("IFLA_IFNAME", name), ("IFLA_MTU", mtu), ("IFLA_LINKINFO", info)]
    return _new(message)


def set_link(
    index: int,
    *,
    up: bool | None = None,
    master: int | None = None,
    mtu: int | None = None,
    queue: int | None = None,
) -> bytes:
    """Change an interface: state, bridge (0 for none), MTU (bytes), queue (packets)."""
    message = ifinfmsg()
    message["index"] = index
    if up is not None:
        message["flags"], message["change"] = (_UP if up else 0), _UP
    attributes: list[Any] = []
    for name, value in (
        ("IFLA_MASTER", master),
        ("IFLA_MTU", mtu),
        ("IFLA_TXQLEN", queue),
    ):
        if value is not None:
            attributes.append((name, value))
    message["attrs"] = attributes
    return encode(message, RTM_NEWLINK, NLM_F_ACK)


def silence(index: int) -> bytes:
    """Give the interface no link-local address, so that it sends no IPv6 chatter of its own."""
    message = ifinfmsg()
    message["index"] = index
    mode = {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", _NO_ADDRESS)]}
    message["attrs"] = [("IFLA_AF_SPEC", {"attrs": [("AF_INET6", mode)]})]
    return encode(message, RTM_NEWLINK, NLM_F_ACK)


def delete_link(index: int) -> bytes:
    """Remove an interface."""
    message = ifinfmsg()
    message["index"] = index
    return encode(message, RTM_DELLINK, NLM_F_ACK)


def get_link(name: str) -> bytes:
    """Ask for one interface by name."""
    message = ifinfmsg()
    message["attrs"] = [("IFLA_IFNAME", name)]
    return encode(message, RTM_GETLINK, NLM_F_ACK)


def list_links() -> bytes:
    """Ask for all interfaces."""
    return encode(ifinfmsg(), RTM_GETLINK, NLM_F_DUMP)


@dataclass(frozen=True)
class LinkInfo:
    """An interface as the kernel reports it. `stats` are its 64-bit counters by name."""

    name: str
    index: int
    up: bool
    master: int | None
    mtu: int
    stats: dict[str, int]
    waking: bool
    """Whether a veth's other end is up but the kernel has not yet taken note, and drops packets."""


def decode_link(data: bytes) -> LinkInfo:
    """Read one answer to `get_link` or `list_links`."""
    message = ifinfmsg(data)
    message.decode()
    stats = message.get_attr("IFLA_STATS64")
    return LinkInfo(
        name=message.get_attr("IFLA_IFNAME"),
        index=message["index"],
        up=bool(message["flags"] & _UP),
        master=message.get_attr("IFLA_MASTER"),
        mtu=message.get_attr("IFLA_MTU"),
        stats={name: stats[name] for name in _COUNTERS} if stats else {},
        waking=_kind(message) == "veth"
        and bool(message.get_attr("IFLA_CARRIER"))
        and message.get_attr("IFLA_OPERSTATE") != "UP",
    )


def _kind(message: Any) -> str | None:
    info = message.get_attr("IFLA_LINKINFO")
    return info.get_attr("IFLA_INFO_KIND") if info else None


_COUNTERS = ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets", "tx_dropped", "rx_dropped")


def pin_address(index: int, mac: bytes) -> bytes:
    """Tell the bridge of a port which address lies behind it, so that it need not flood."""
    message = ndmsg()
    message["family"], message["ifindex"] = _AF_BRIDGE, index
    message["state"], message["flags"] = _STATIC, _OF_MASTER
    message["attrs"] = [("NDA_LLADDR", mac.hex(":"))]
    return encode(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK)
