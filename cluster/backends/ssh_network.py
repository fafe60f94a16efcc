"""Network faults on real machines: `tc` on each sender's data interface, towards its peers only.

A prio qdisc of our own sends packets for the cluster's hosts through netem leaves; everything
else, the ssh connection among it, passes untouched. When the set of faults changes, the qdiscs are
built anew, and packets that waited in them are lost.
"""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cluster.backends.ssh_connection import SshConnection
from cluster.interface import Unfit
from cluster.network.netem import NO_FAULT, Netem
from cluster.network.paths import Path

HANDLE = "d157:"
_BANDS = 16
_SUDOERS = "/usr/sbin/tc"


@dataclass(frozen=True)
class Leaf:
    """One netem qdisc of a sender, and the hosts, by index, whose packets pass it."""

    towards: tuple[int, ...]
    fault: Netem


def leaves_of(sender: int, rules: Mapping[Path, Netem], hosts: int) -> list[Leaf]:
    """The qdiscs that `sender` needs for `rules`. Raises Unfit where none do the same."""
    peers = [host for host in range(hosts) if host != sender]
    outgoing = rules.get(Path(sender, None), NO_FAULT)
    faults: dict[int, list[Netem]] = {}
    for peer in peers:
        on_path = (outgoing, rules.get(Path(sender, peer)), rules.get(Path(None, peer)))
        faults[peer] = [fault for fault in on_path if fault not in (None, NO_FAULT)]
        incoming = on_path[2]
        if incoming is not None and incoming.rate_mbit is not None and hosts > 2:
            raise Unfit(
                "a rate into a host is shared by all who send to it, which the ssh backend cannot "
                "do; give the rate to each sender or link instead"
            )
    if outgoing != NO_FAULT and all(faults[peer] == [outgoing] for peer in peers):
        return [Leaf(tuple(peers), outgoing)]
    if outgoing.rate_mbit is not None and len(peers) > 1:
        raise Unfit(
            "a rate out of a host beside faults on its links cannot be done on the ssh backend; "
            "give the rate to each link instead"
        )
    leaves = [Leaf((peer,), _combined(faults[peer])) for peer in peers if faults[peer]]
    if len(leaves) >= _BANDS:
        raise Unfit(f"{len(leaves)} impaired links out of one host; the most is {_BANDS - 1}")
    return leaves


def _combined(faults: Sequence[Netem]) -> Netem:
    """What a packet meets that passes all of `faults` in turn."""
    values: dict[str, Any] = {
        "delay_ms": sum(fault.delay_ms for fault in faults),
        "loss_pct": 100 * (1 - math.prod(1 - fault.loss_pct / 100 for fault in faults)),
    }
    for field in fields(Netem):
        if field.name not in values:
            set_by = [v for v in (getattr(f, field.name) for f in faults) if v != field.default]
            if len(set_by) > 1:
                raise Unfit(f"two faults on one path both set {field.name}; set it in one of them")
            values[field.name] = set_by[0] if set_by else field.default
    if values["gemodel"] is not None and values["loss_pct"]:
        raise Unfit("two faults on one path both lose packets, one in bursts; keep one of them")
    return Netem(**values)


def netem_arguments(fault: Netem) -> list[str]:
    """The words that `tc qdisc ... netem` takes for `fault`."""
    words = ["limit", str(fault.queue_limit)]
    if fault.delay_ms:
        words += ["delay", f"{fault.delay_ms * 1000:.0f}us", f"{fault.jitter_ms * 1000:.0f}us"]
    if fault.loss_pct:
        words += ["loss", "random", f"{fault.loss_pct:.6f}%"]
    if fault.gemodel is not None:
        model = fault.gemodel
        chances = (model.p_pct, model.r_pct, model.bad_loss_pct, model.good_loss_pct)
        words += ["loss", "gemodel", *(f"{chance:.6f}%" for chance in chances)]
    for name in ("duplicate", "corrupt", "reorder"):
        if share := getattr(fault, f"{name}_pct"):
            words += [name, f"{share:.6f}%"]
    if fault.rate_mbit is not None:
        words += ["rate", f"{fault.rate_mbit * 1e6:.0f}bit"]
    return words


def tc_commands(
    interface: str, leaves: Sequence[Leaf], addresses: Sequence[str]
) -> list[list[str]]:
    """The tc command lines that put `leaves` into force on an interface without our qdisc.

    addresses: data address of each host. Raises Unfit for one that is not numeric.
    """
    replace_root = ["qdisc", "replace", "dev", interface, "root", "handle", HANDLE]
    everything_to_first_band = ["bands", str(_BANDS), "priomap", *["0"] * 16]
    commands = [[*replace_root, "prio", *everything_to_first_band]]
    for band, leaf in enumerate(leaves, start=2):
        place = f"{HANDLE}{band:x}"
        qdisc = ["qdisc", "add", "dev", interface, "parent", place, "netem"]
        commands.append([*qdisc, *netem_arguments(leaf.fault)])
        for peer in leaf.towards:
            protocol, match = _destination(addresses[peer])
            choice = ["filter", "add", "dev", interface, "parent", HANDLE, "protocol", protocol]
            # One priority holds filters of one protocol only.
            choice += ["prio", "1" if protocol == "ip" else "2", "u32", "match", *match]
            commands.append([*choice, "flowid", place])
    return commands


def _destination(address: str) -> tuple[str, list[str]]:
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        raise Unfit(
            f"faults need the numeric address of each data interface; set `data_address` for "
            f"{address!r} in the inventory"
        ) from None
    if version == 4:
        return "ip", ["ip", "dst", f"{address}/32"]
    return "ipv6", ["ip6", "dst", f"{address}/128"]


class SshNetwork:
    """The data network of connected machines."""

    def __init__(self, connections: Sequence[SshConnection]) -> None:
        self._connections = connections
        self._impaired: set[int] = set()

    def impose(self, rules: Mapping[Path, Netem], *, idle: bool = True) -> str:
        """Put the complete set of rules into force; return what tc then reports.

        Raises Unfit with the command that was refused.
        """
        hosts = range(len(self._connections))
        plans = {host: leaves_of(host, rules, len(self._connections)) for host in hosts}
        addresses = [c.machine.data_address for c in self._connections]
        proofs = []
        for host, leaves in plans.items():
            interface = self._connections[host].machine.data_interface
            if host in self._impaired or leaves:
                self._clear(host)
            if leaves:
                self._impaired.add(host)
                for command in tc_commands(interface, leaves, addresses):
                    self._tc(host, command)
                proofs.append(self._proof(host, leaves))
        return "; ".join(proofs) or "no fault"

    def _clear(self, host: int) -> None:
        interface = self._connections[host].machine.data_interface
        for qdisc in self._qdiscs(host):
            if not qdisc.get("root"):
                continue
            if qdisc["handle"] == HANDLE:
                self._tc(host, ["qdisc", "del", "dev", interface, "root"])
            elif qdisc["handle"] != "0:":
                name = self._connections[host].machine.name
                raise Unfit(
                    f"{interface} of {name} already has a qdisc of its own ({qdisc['kind']}), "
                    f"which is left alone; remove it with `sudo tc qdisc del dev {interface} root`"
                )
        self._impaired.discard(host)

    def _proof(self, host: int, leaves: Sequence[Leaf]) -> str:
        found = [q for q in self._qdiscs(host) if q["kind"] == "netem"]
        name = self._connections[host].machine.name
        for band, leaf in enumerate(leaves, start=2):
            options = [q["options"] for q in found if q.get("parent") == f"{HANDLE}{band:x}"]
            if len(options) != 1 or not agrees(options[0], leaf.fault):
                raise Unfit(f"{name}: asked for {leaf.fault.describe()}, tc reports {options}")
        words = [
            f"{leaf.fault.describe()} towards "
            + ", ".join(self._connections[peer].machine.name for peer in leaf.towards)
            for leaf in leaves
        ]
        return f"{name}: {' and '.join(words)} (read back)"

    def _qdiscs(self, host: int) -> list[dict[str, Any]]:
        interface = self._connections[host].machine.data_interface
        listing: list[dict[str, Any]] = json.loads(
            self._tc(host, ["-j", "qdisc", "show", "dev", interface]) or b"[]"
        )
        return listing

    def _tc(self, host: int, arguments: Sequence[str]) -> bytes:
        machine = self._connections[host].machine
        try:
            return self._connections[host].request(
                "tc", arguments=list(arguments), sudo=machine.sudo
            )[1]
        except Unfit as refusal:
            if "not permitted" in str(refusal) or "sudo:" in str(refusal):
                user = machine.user or "USER"
                raise Unfit(
                    f"{refusal}; set `sudo = true` for {machine.name} in the inventory and let "
                    f"`{user} ALL=(root) NOPASSWD: {_SUDOERS}` stand in its sudoers"
                ) from refusal
            raise


def agrees(options: Mapping[str, Any], fault: Netem) -> bool:
    """Whether `options`, from `tc -j`, are `fault`, to the precision that the kernel keeps."""
    model = fault.gemodel
    asked = {
        ("delay", "delay"): fault.delay_ms / 1e3,
        ("delay", "jitter"): fault.jitter_ms / 1e3,
        ("loss-random", "loss"): fault.loss_pct / 100,
        ("loss-gemodel", "p"): model.p_pct / 100 if model else 0.0,
        ("loss-gemodel", "r"): model.r_pct / 100 if model else 0.0,
        ("loss-gemodel", "1-h"): model.bad_loss_pct / 100 if model else 0.0,
        ("loss-gemodel", "1-k"): model.good_loss_pct / 100 if model else 0.0,
        ("duplicate", "duplicate"): fault.duplicate_pct / 100,
        ("corrupt", "corrupt"): fault.corrupt_pct / 100,
        ("reorder", "reorder"): fault.reorder_pct / 100,
        ("rate", "rate"): (fault.rate_mbit or 0.0) * 1e6 / 8,
    }
    return all(
        math.isclose(float(options.get(kind, {}).get(key, 0)), value, rel_tol=1e-3, abs_tol=1e-6)
        for (kind, key), value in asked.items()
    )
