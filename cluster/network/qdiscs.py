"""Queueing disciplines as rtnetlink messages, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, nla
from pyroute2.netlink.rtnl import RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, TC_H_ROOT
from pyroute2.netlink.rtnl.tcmsg import sched_tbf, tcmsg

from cluster.network.messages import encode
from cluster.network.netem import NETEM_DEFAULT_LIMIT, NO_FAULT, Netem
from cluster.network.netem_codec import NetemOptions, decode_netem, encode_netem

ROOT: int = TC_H_ROOT
INGRESS = 0xFFFFFFF1
INGRESS_HANDLE = 0xFFFF0000
PRIO_BANDS = 16
# Tokens for this long may gather: enough to make up for a late timer, too little to notice.
BURST_S = 0.002
_OPEN_MBIT = 34_000.0
_ETHERNET, _ETHERNET_HEADER = 1, 14


class _TbfOptions(sched_tbf.options):  # type: ignore[misc]
    nla_map = (
        *sched_tbf.options.nla_map,
        ("TCA_TBF_RATE64", "uint64"),
        ("TCA_TBF_PRATE64", "uint64"),
        ("TCA_TBF_BURST", "uint32"),
        ("TCA_TBF_PBURST", "uint32"),
        ("TCA_TBF_PAD", "hex"),
    )

    class tbf_parms(nla):  # type: ignore[misc]
        fields = sched_tbf.options.tbf_parms.fields


class _QdiscMessage(tcmsg):  # type: ignore[misc]
    @staticmethod
    def get_options(message: Any, *_: Any, **__: Any) -> Any:
        own = {"netem": NetemOptions, "tbf": _TbfOptions}
        return own.get(message.get_attr("TCA_KIND")) or tcmsg.get_options(message)


@dataclass(frozen=True)
class Place:
    """Where one qdisc sits: an interface, and the band of its prio qdisc (0: at the root)."""

    index: int
    band: int = 0

    @property
    def parent(self) -> int:
        """What it hangs from, as the kernel writes it."""
        return _PRIO_HANDLE | self.band if self.band else ROOT

    @property
    def handle(self) -> int:
        """Its own name, as the kernel writes it."""
        return (_FIRST_LEAF + self.band) << 16 if self.band else _PRIO_HANDLE


_PRIO_HANDLE = 1 << 16
_FIRST_LEAF = 0x10


def _put(place: Place, kind: str, options: Any) -> bytes:
    message = _QdiscMessage()
    message["index"], message["parent"], message["handle"] = (
        place.index,
        place.parent,
        place.handle,
    )
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    return encode(message, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK)


def put_netem(place: Place, fault: Netem) -> bytes:
    """Create a netem qdisc, or change it without losing what waits in it."""
    return _put(place, "netem", encode_netem(fault))


# A switch queues for some 20 ms. A queue that holds seconds makes every short message
# wait behind bulk data, and hides from the sender that the link is full.
QUEUE_S = 0.02
_QUEUE_FRAMES = 32


def put_shaper(place: Place, fault: Netem, mtu: int) -> bytes:
    """Create or change a token bucket with the rate of `fault`; without one it lets all pass.

    `mtu` in bytes is the largest packet that it must pass.
    """
    mbit = _OPEN_MBIT if fault.rate_mbit is None else fault.rate_mbit
    rate, frame = round(mbit * 1e6 / 8), mtu + _ETHERNET_HEADER
    burst = max(2 * frame, round(rate * BURST_S))
    longest = NETEM_DEFAULT_LIMIT * frame
    parameters = {
        "rate": rate,
        "rate___reserved": _ETHERNET,
        "limit": min(longest, max(_QUEUE_FRAMES * frame, round(rate * QUEUE_S))) + burst,
    }
    attributes = [("TCA_TBF_PARMS", parameters), ("TCA_TBF_BURST", burst)]
    return _put(place, "tbf", {"attrs": attributes})


def put_bands(index: int) -> bytes:
    """Create a root prio qdisc whose unclassified packets all take the first band."""
    return _put(Place(index), "prio", {"bands": PRIO_BANDS, "priomap": [0] * 16})


def put_ingress(index: int) -> bytes:
    """Let filters see what an interface receives."""
    message = _QdiscMessage()
    message["index"], message["parent"], message["handle"] = index, INGRESS, INGRESS_HANDLE
    message["attrs"] = [("TCA_KIND", "ingress")]
    return encode(message, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK)


def delete_qdisc(place: Place) -> bytes:
    """Remove a qdisc, with the packets that wait in it and the qdiscs below it."""
    message = _QdiscMessage()
    message["index"], message["parent"], message["handle"] = (
        place.index,
        place.parent,
        place.handle,
    )
    return encode(message, RTM_DELQDISC, NLM_F_ACK)


def list_qdiscs() -> bytes:
    """Ask for the qdiscs of all interfaces."""
    return encode(_QdiscMessage(), RTM_GETQDISC, NLM_F_DUMP)


@dataclass(frozen=True)
class Qdisc:
    """A qdisc as the kernel reports it. `fault` is None for one that never is a fault."""

    place: Place
    waiting: int
    """Packets in its queue."""
    fault: Netem | None


def decode_qdisc(data: bytes) -> Qdisc:
    """Read one answer to `list_qdiscs`."""
    message = _QdiscMessage(data)
    message.decode()
    kind, options = message.get_attr("TCA_KIND"), message.get_attr("TCA_OPTIONS")
    stats = message.get_attr("TCA_STATS")
    fault = None
    if kind == "netem":
        fault = decode_netem(options)
    elif kind == "tbf":
        mbit = options.get_attr("TCA_TBF_PARMS")["rate"] * 8 / 1e6
        fault = NO_FAULT if mbit >= _OPEN_MBIT else Netem(rate_mbit=mbit)
    band = 0 if message["parent"] == ROOT else message["parent"] & 0xFFFF
    return Qdisc(Place(message["index"], band), stats["qlen"] if stats else 0, fault)
