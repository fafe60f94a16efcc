"""Netem settings as rtnetlink attributes, and back.

pyroute2's own netem class lacks burst loss and the 64-bit delays; it is extended here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.tcmsg import sched_netem

from cluster.network.netem import GilbertElliott, Netem

_U32_MAX = 0xFFFFFFFF
_NS_PER_MS = 1_000_000
_NS_PER_TICK = 64


class NetemOptions(sched_netem.options):  # type: ignore[misc]
    """The netem options of a tc message."""

    nla_map = (
        *sched_netem.options.nla_map[:5],
        ("TCA_NETEM_LOSS", "netem_loss"),
        ("TCA_NETEM_RATE", "netem_rate"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "hex"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "hex"),
        ("TCA_NETEM_SLOT_DIST", "hex"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class netem_loss(nla):  # type: ignore[misc]
        nla_map = (
            ("NETEM_LOSS_UNSPEC", "none"),
            ("NETEM_LOSS_GI", "hex"),
            ("NETEM_LOSS_GE", "gemodel"),
        )

        class gemodel(nla):  # type: ignore[misc]
            fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


def _share(percent: float) -> int:
    return round(percent / 100 * _U32_MAX)


def _percent(share: int) -> float:
    return round(share / _U32_MAX * 100, 6)


def encode_netem(fault: Netem) -> dict[str, Any]:
    """Options for a netem qdisc.

    Every attribute is sent each time: the kernel keeps the old value of one left out.
    """
    delay_ns, jitter_ns = (round(x * _NS_PER_MS) for x in (fault.delay_ms, fault.jitter_ms))
    rate = 0 if fault.rate_mbit is None else max(1, round(fault.rate_mbit * 1e6 / 8))
    attributes: list[tuple[str, Any]] = [
        ("TCA_NETEM_CORR", {"delay_corr": 0, "loss_corr": 0, "dup_corr": 0}),
        ("TCA_NETEM_REORDER", {"prob_reorder": _share(fault.reorder_pct), "corr_reorder": 0}),
        ("TCA_NETEM_CORRUPT", {"prob_corrupt": _share(fault.corrupt_pct), "corr_corrupt": 0}),
        ("TCA_NETEM_RATE", {"rate": rate}),
        ("TCA_NETEM_LATENCY64", delay_ns),
        ("TCA_NETEM_JITTER64", jitter_ns),
    ]
    if fault.gemodel:
        model = {
            "p": _share(fault.gemodel.p_pct),
            "r": _share(fault.gemodel.r_pct),
            "h": _share(100 - fault.gemodel.bad_loss_pct),
            "k1": _share(fault.gemodel.good_loss_pct),
        }
        attributes.append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", model)]}))
    return {
        "delay": min(delay_ns // _NS_PER_TICK, _U32_MAX),
        "jitter": min(jitter_ns // _NS_PER_TICK, _U32_MAX),
        "limit": fault.queue_limit,
        "loss": _share(fault.loss_pct),
        "gap": 1 if fault.reorder_pct else 0,
        "duplicate": _share(fault.duplicate_pct),
        "attrs": attributes,
    }


def decode_netem(options: Any) -> Netem:
    """The fault that decoded options of a netem qdisc stand for."""

    def attribute(name: str, field: str) -> int:
        found = options.get_attr(name)
        return int(found[field]) if found else 0

    loss = options.get_attr("TCA_NETEM_LOSS")
    model = loss.get_attr("NETEM_LOSS_GE") if loss else None
    rate = options.get_attr("TCA_NETEM_RATE64") or attribute("TCA_NETEM_RATE", "rate")
    delay_ns = options.get_attr("TCA_NETEM_LATENCY64")
    jitter_ns = options.get_attr("TCA_NETEM_JITTER64")
    if delay_ns is None:
        delay_ns, jitter_ns = (options[name] * _NS_PER_TICK for name in ("delay", "jitter"))
    fault = Netem(
        delay_ms=delay_ns / _NS_PER_MS,
        jitter_ms=jitter_ns / _NS_PER_MS,
        loss_pct=0.0 if model else _percent(options["loss"]),
        gemodel=GilbertElliott(
            p_pct=_percent(model["p"]),
            r_pct=_percent(model["r"]),
            bad_loss_pct=_percent(_U32_MAX - model["h"]),
            good_loss_pct=_percent(model["k1"]),
        )
        if model
        else None,
        duplicate_pct=_percent(options["duplicate"]),
        corrupt_pct=_percent(attribute("TCA_NETEM_CORRUPT", "prob_corrupt")),
        reorder_pct=_percent(attribute("TCA_NETEM_REORDER", "prob_reorder")),
        rate_mbit=rate * 8 / 1e6 if rate else None,
        limit_packets=options["limit"],
    )
    computed = replace(fault, limit_packets=None)
    return computed if computed.queue_limit == fault.queue_limit else fault


def same_effect(asked: Netem, in_force: Netem) -> bool:
    """Whether a kernel that reports `in_force` does what was asked, up to its resolution."""

    def as_sent(fault: Netem) -> tuple[Any, ...]:
        model = fault.gemodel
        burst = (model.p_pct, model.r_pct, model.bad_loss_pct, model.good_loss_pct) if model else ()
        numbers = (
            fault.delay_ms,
            fault.jitter_ms,
            fault.loss_pct,
            fault.duplicate_pct,
            fault.corrupt_pct,
            fault.reorder_pct,
            fault.rate_mbit or 0.0,
            float(fault.queue_limit),
            *burst,
        )
        return tuple(round(number, 4) for number in numbers)

    first, second = as_sent(asked), as_sent(in_force)
    return len(first) == len(second) and all(
        abs(a - b) <= 2e-4 for a, b in zip(first, second, strict=True)
    )
