"""Addresses, neighbours and bridge-port flags as rtnetlink messages."""

from __future__ import annotations

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE
from pyroute2.netlink.rtnl import RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_SETLINK
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from cluster.network.messages import encode

_AF_INET, _AF_BRIDGE = 2, 7
_PERMANENT = 0x80
_NESTED = 0x8000


def add_address(index: int, address: str, prefix: int) -> bytes:
    """Give an interface an IPv4 address."""
    message = ifaddrmsg()
    message["family"], message["index"], message["prefixlen"] = _AF_INET, index, prefix
    message["attrs"] = [("IFA_LOCAL", address), ("IFA_ADDRESS", address)]
    return encode(message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK)


def add_neighbour(index: int, address: str, mac: str) -> bytes:
    """Make the kernel know for good which Ethernet address `address` has."""
    message = ndmsg()
    message["family"], message["ifindex"], message["state"] = _AF_INET, index, _PERMANENT
    message["attrs"] = [("NDA_DST", address), ("NDA_LLADDR", mac)]
    return encode(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK)


def isolate_port(index: int) -> bytes:
    """Let a bridge port reach only ports that are not isolated themselves."""
    message = ifinfmsg()
    message["family"], message["index"] = _AF_BRIDGE, index
    # Without the nested flag the kernel takes the attribute for a bare port state.
    message["attrs"] = [("IFLA_PROTINFO", {"attrs": [("IFLA_BRPORT_ISOLATED", 1)]}, _NESTED)]
    return encode(message, RTM_SETLINK, NLM_F_ACK)


def add_veth_out_to(netns_fd: int, peer: str, name: str, mac: str, mtu: int) -> bytes:
    """A pair of connected interfaces: `name`, and `peer` at once in the namespace where it is to
    be, since moving it there later takes the kernel some 30 ms.

    mac: of `name`. mtu: bytes, on both ends.
    """
    message = ifinfmsg()
    other = {
        "attrs": [
            ("IFLA_IFNAME", peer),
            ("IFLA_MTU", mtu),
            ("IFLA_NET_NS_FD", netns_fd),
        ]
    }
    info = {
        "attrs": [
            ("IFLA_INFO_KIND", "veth"),
            ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", other)]}),
        ]
    }
    message["attrs"] = [
        ("IFLA_IFNAME", name),
        ("IFLA_ADDRESS", mac),
        ("IFLA_MTU", mtu),
        ("IFLA_LINKINFO", info),
    ]
    return encode(message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_ACK)
