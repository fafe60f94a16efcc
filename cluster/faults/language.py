"""The fault language of cards, checks and the playground: one fault a line, read into data.

    delay 20ms [jitter 2ms] on all          rate 200mbit on node1
    loss 1% on node1->node3                 limit 50 packets on downlink node2
    duplicate 1% on uplink node1            reorder 5% delay 10ms on all
    partition {node1,node2} | {node3,node4}
    kill node2      pause node3             cpus 0.25 on node4
    fill disk of node1                      slow disk of node1 to 8 MB/s

Several settings may stand in one line (`rate 200mbit delay 20ms on all`). In front may stand a
time: `at 3s kill node2`, `from 2s to 5s pause node3`; without one the fault holds at once, until
it is healed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.network.netem import Netem

_TIME = r"(\d+(?:\.\d+)?)\s*s"
_FROM_TO = re.compile(rf"from\s+{_TIME}\s+to\s+{_TIME}\s+(.*)", re.S)
_AT = re.compile(rf"at\s+{_TIME}\s+(.*)", re.S)
_GROUP = re.compile(r"\{([^{}]*)\}")
_SETTINGS: dict[str, tuple[str, re.Pattern[str]]] = {
    "delay": ("delay_ms", re.compile(r"(\d+(?:\.\d+)?)(ms|s)$")),
    "jitter": ("jitter_ms", re.compile(r"(\d+(?:\.\d+)?)(ms|s)$")),
    "loss": ("loss_pct", re.compile(r"(\d+(?:\.\d+)?)(%)$")),
    "duplicate": ("duplicate_pct", re.compile(r"(\d+(?:\.\d+)?)(%)$")),
    "corrupt": ("corrupt_pct", re.compile(r"(\d+(?:\.\d+)?)(%)$")),
    "reorder": ("reorder_pct", re.compile(r"(\d+(?:\.\d+)?)(%)$")),
    "rate": ("rate_mbit", re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)$")),
    "limit": ("limit_packets", re.compile(r"(\d+)()$")),
}
_SCALE = {"ms": 1.0, "s": 1000.0, "%": 1.0, "kbit": 1e-3, "mbit": 1.0, "gbit": 1e3, "": 1.0}
_BYTES = {"k": 1e3, "M": 1e6, "G": 1e9}
_HOST_FAULTS = ("kill", "pause", "cpus", "fill disk", "slow disk")
_SLOW_DISK = "slow disk of node1 to 8 MB/s"
_EXAMPLES = {
    "delay": "delay 20ms on all",
    "jitter": "delay 20ms jitter 2ms on all",
    "loss": "loss 1% on node1->node2",
    "duplicate": "duplicate 1% on node1",
    "corrupt": "corrupt 0.1% on node1",
    "reorder": "reorder 5% delay 10ms on all",
    "rate": "rate 200mbit on all",
    "limit": "limit 50 packets on downlink node2",
}


class FaultSyntaxError(ValueError):
    """A fault line cannot be read: the sentence says which word, and what would be right."""


@dataclass(frozen=True)
class Target:
    """Where a network fault applies. kind: "all" | "host" | "uplink" | "downlink" | "link"."""

    kind: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Impair:
    netem: Netem
    target: Target


@dataclass(frozen=True)
class Partition:
    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class HostFault:
    """kind: "kill" | "pause" | "cpus" | "fill disk" | "slow disk". value: processors for "cpus",
    bytes a second for "slow disk"."""

    kind: str
    host: str
    value: float = 0.0


Action = Impair | Partition | HostFault


@dataclass(frozen=True)
class Fault:
    """One fault. start, end: seconds from the job's zero; end None: until healed."""

    text: str
    action: Action
    start: float = 0.0
    end: float | None = None


def parse_fault(line: str, hosts: Sequence[str]) -> Fault:
    """Read one fault line against the names of the hosts there are. Raises FaultSyntaxError."""
    text = " ".join(line.split())
    if match := _FROM_TO.fullmatch(text):
        start, end, rest = float(match[1]), float(match[2]), match[3]
        if end <= start:
            raise FaultSyntaxError(f"{text!r}: the fault ends at {end:g} s, before it begins")
        return Fault(text, _action(rest, hosts), start, end)
    if match := _AT.fullmatch(text):
        return Fault(text, _action(match[2], hosts), float(match[1]))
    return Fault(text, _action(text, hosts))


def is_of_the_network(line: str) -> bool:
    """Whether a fault line, which need not be right, speaks of the network and not of a host."""
    text = " ".join(line.split())
    match = _FROM_TO.fullmatch(text) or _AT.fullmatch(text)
    return not (match[match.lastindex or 0] if match else text).startswith(_HOST_FAULTS)


def parse_timeline(text: str, hosts: Sequence[str]) -> tuple[Fault, ...]:
    """Read a fault a line, passing over empty lines and `#` comments. Raises FaultSyntaxError."""
    lines = (line.partition("#")[0].strip() for line in text.replace(";", "\n").splitlines())
    return tuple(parse_fault(line, hosts) for line in lines if line)


def _action(text: str, hosts: Sequence[str]) -> Action:
    word = text.partition(" ")[0]
    if word == "partition":
        return _partition(text, hosts)
    if word in ("kill", "pause"):
        return HostFault(word, _host(text.partition(" ")[2].strip(), hosts))
    if match := re.fullmatch(r"cpus (\d+(?:\.\d+)?) on (\S+)", text):
        value = float(match[1])
        if not 0.01 <= value <= 1024:
            raise FaultSyntaxError(f"cpus {match[1]}: a host can have 0.01 to 1024 processors")
        return HostFault("cpus", _host(match[2], hosts), value)
    if match := re.fullmatch(r"fill disk of (\S+)", text):
        return HostFault("fill disk", _host(match[1], hosts))
    if match := re.fullmatch(r"slow disk of (\S+) to (\d+(?:\.\d+)?) ?([kMG])B/s", text):
        value = float(match[2]) * _BYTES[match[3]]
        if value < 1:
            raise FaultSyntaxError(f"{text!r}: a slow disk still moves a byte a second")
        return HostFault("slow disk", _host(match[1], hosts), value)
    if text.startswith("slow disk"):
        raise FaultSyntaxError(f"`{text}` cannot be read; for example `{_SLOW_DISK}`")
    if word in _SETTINGS:
        return _impairment(text, hosts)
    known = ", ".join([*_SETTINGS, "partition", *_HOST_FAULTS])
    raise FaultSyntaxError(f"{word!r} is no fault; there are {known}")


def _impairment(text: str, hosts: Sequence[str]) -> Impair:
    settings, on, target = text.partition(" on ")
    if not on:
        raise FaultSyntaxError(
            f"{text!r} does not say where; for example `{_EXAMPLES[text.partition(' ')[0]]}`"
        )
    words = [word for word in settings.split() if word != "packets"]
    values: dict[str, float] = {}
    for name, value in zip(words[::2], [*words[1::2], ""], strict=False):
        if name not in _SETTINGS:
            raise FaultSyntaxError(f"{name!r} is no setting; there are {', '.join(_SETTINGS)}")
        field, pattern = _SETTINGS[name]
        match = pattern.match(value.lower())
        if not match:
            raise FaultSyntaxError(
                f"`{name} {value}` cannot be read; for example `{_EXAMPLES[name]}`"
            )
        values[field] = float(match[1]) * _SCALE[match[2]]
    if "limit_packets" in values:
        values["limit_packets"] = int(values["limit_packets"])
    try:
        netem = Netem(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise FaultSyntaxError(f"{text!r}: {error}") from None
    return Impair(netem, _target(target.strip(), hosts))


def _target(text: str, hosts: Sequence[str]) -> Target:
    if text == "all":
        return Target("all")
    if "->" in text:
        source, _, destination = (part.strip() for part in text.partition("->"))
        if source == destination:
            raise FaultSyntaxError(f"{text!r}: a link joins two different hosts")
        return Target("link", (_host(source, hosts), _host(destination, hosts)))
    for kind in ("uplink", "downlink"):
        if text.startswith(kind + " "):
            return Target(kind, (_host(text.partition(" ")[2].strip(), hosts),))
    return Target("host", (_host(text, hosts),))


def _partition(text: str, hosts: Sequence[str]) -> Partition:
    rest = text.removeprefix("partition").strip()
    groups = tuple(
        tuple(_host(name.strip(), hosts) for name in group.split(",") if name.strip())
        for group in _GROUP.findall(rest)
    )
    named = [host for group in groups for host in group]
    if len(groups) < 2 or not all(groups) or _GROUP.sub("", rest).replace("|", "").strip():
        raise FaultSyntaxError(
            f"{text!r} cannot be read; for example `partition {{node1,node2}} | {{node3,node4}}`"
        )
    if len(named) != len(set(named)):
        raise FaultSyntaxError(f"{text!r}: a host can be on one side of a partition only")
    return Partition(groups)


def _host(name: str, hosts: Sequence[str]) -> str:
    if name not in hosts:
        raise FaultSyntaxError(f"there is no host {name!r}; this cluster has {', '.join(hosts)}")
    return name
