"""Packet filters on Ethernet addresses as rtnetlink messages.

Offsets count from the network header, so the Ethernet header lies at negative ones, which
pyroute2's own u32 selector cannot express.
"""

from __future__ import annotations

import struct
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, nla
from pyroute2.netlink.rtnl import RTM_DELTFILTER, RTM_NEWTFILTER
from pyroute2.netlink.rtnl.tcmsg import cls_u32, tcmsg
from pyroute2.netlink.rtnl.tcmsg import common_act as common_action

from cluster.network.messages import encode
from cluster.network.qdiscs import INGRESS_HANDLE, Place

_ALL_PROTOCOLS = 0x0300  # ETH_P_ALL in network byte order
_TO_EGRESS = 1
_STOLEN, _GO_ON = 4, 3
_PEDIT_PARAMETERS = 2
_DESTINATION, _SOURCE = -14, -8

Key = tuple[bytes, bytes, int]
"""Mask, value (4 bytes each) and offset."""
Keys = tuple[Key, ...]

EVERYTHING: Keys = ((bytes(4), bytes(4), 0),)
TO_A_GROUP: Keys = ((b"\x01\0\0\0", b"\x01\0\0\0", _DESTINATION),)
"""Broadcast and multicast."""


def _address(mac: bytes, offset: int) -> Keys:
    return (
        (b"\xff" * 4, mac[:4], offset),
        (b"\xff\xff\0\0", mac[4:] + b"\0\0", offset + 4),
    )


def to_host(mac: bytes) -> Keys:
    """Packets to a destination address of 6 bytes."""
    return _address(mac, _DESTINATION)


def from_host(mac: bytes) -> Keys:
    """Packets from a source address of 6 bytes."""
    return _address(mac, _SOURCE)


class _U32Options(cls_u32.options):  # type: ignore[misc]
    nla_map = tuple(
        (name, "cdata" if name == "TCA_U32_SEL" else kind) for name, kind in cls_u32.options.nla_map
    )

    class tca_act_prio(common_action.tca_act_prio):  # type: ignore[misc]
        class tca_act(common_action.tca_act_prio.tca_act):  # type: ignore[misc]
            @staticmethod
            def get_act_options(action: Any, *_: Any, **__: Any) -> Any:
                if action.get_attr("TCA_ACT_KIND") == "pedit":
                    return nla.cdata
                return common_action.nla_plus_tca_act_opt.get_act_options(action)


class _FilterMessage(tcmsg):  # type: ignore[misc]
    @staticmethod
    def get_options(*_: Any, **__: Any) -> Any:
        return _U32Options


def _put(index: int, parent: int, priority: int, keys: Keys, target: tuple[str, Any]) -> bytes:
    terminal = 1
    selector = struct.pack("=BBBxHHhhI", terminal, 0, len(keys), 0, 0, 0, 0, 0)
    for mask, value, offset in keys:
        selector += struct.pack("=4s4sii", mask, value, offset, 0)
    message = _FilterMessage()
    message["index"], message["parent"] = index, parent
    message["info"] = priority << 16 | _ALL_PROTOCOLS
    options = {"attrs": [target, ("TCA_U32_SEL", selector)]}
    message["attrs"] = [("TCA_KIND", "u32"), ("TCA_OPTIONS", options)]
    return encode(message, RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_ACK)


def put_band_filter(place: Place, keys: Keys) -> bytes:
    """Send matching packets that leave an interface to the band at `place`."""
    root = Place(place.index).handle
    return _put(place.index, root, place.band, keys, ("TCA_U32_CLASSID", place.parent))


def delete_band_filter(place: Place) -> bytes:
    """Send nothing to the band at `place` any more."""
    return _delete(place.index, Place(place.index).handle, place.band)


def put_redirect(
    index: int, priority: int, keys: Keys, target: int, readdress: bytes | None = None
) -> bytes:
    """Hand matching packets that an interface receives to the exit of interface `target`.

    `readdress` is a destination address of 6 bytes to write into them first.
    """
    parameters = {"action": _STOLEN, "eaction": _TO_EGRESS, "ifindex": target}
    actions: list[tuple[str, Any]] = [("mirred", {"attrs": [("TCA_MIRRED_PARMS", parameters)]})]
    if readdress is not None:
        actions.insert(0, ("pedit", _new_destination(readdress)))
    chain = [
        (
            f"TCA_ACT_PRIO_{number}",
            {"attrs": [("TCA_ACT_KIND", kind), ("TCA_ACT_OPTIONS", options)]},
        )
        for number, (kind, options) in enumerate(actions, start=1)
    ]
    return _put(index, INGRESS_HANDLE, priority, keys, ("TCA_U32_ACT", {"attrs": chain}))


def _new_destination(mac: bytes) -> bytes:
    """Options of a pedit action. It writes whole words, so the two bytes before are kept."""
    header = struct.pack("=IIiiiBB2x", 0, 0, _GO_ON, 0, 0, 2, 0)
    words = (b"\xff\xff\0\0", b"\0\0" + mac[:2], -16), (bytes(4), mac[2:], -12)
    keys = b"".join(struct.pack("=4s4siIII", *word, 0, 0, 0) for word in words)
    body = header + keys
    return struct.pack("=HH", len(body) + 4, _PEDIT_PARAMETERS) + body


def delete_redirect(index: int, priority: int) -> bytes:
    """Remove the redirection of this priority."""
    return _delete(index, INGRESS_HANDLE, priority)


def _delete(index: int, parent: int, priority: int) -> bytes:
    message = _FilterMessage()
    message["index"], message["parent"] = index, parent
    message["info"] = priority << 16 | _ALL_PROTOCOLS
    return encode(message, RTM_DELTFILTER, NLM_F_ACK)
