"""Topology from text, the ring with the fastest slowest link, and a place for every rank.

The matrix is read by names, not by columns of text; the XML tree is walked once. The ring is a
bottleneck problem: guess the slowest link that a ring may have, keep what is at least that fast,
and ask whether a ring is left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

PCI_GBPS = {"PIX": 24.0, "PXB": 20.0, "PHB": 16.0, "NODE": 12.0, "SYS": 8.0}
NEARNESS = {kind: place for place, kind in enumerate(PCI_GBPS)}
MATRIX_NVLINK_GBPS = 25.0
GBPS_PER_GT_LANE = 3 / 32
PCI_BRIDGE, NVSWITCH = "0x0604", "0x0680"

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HEADER = re.compile(r"^\s*(GPU\d+(?:\s+\S+)*?)\s+CPU Affinity\b(.*)$")
NIC_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$", re.M)
KIND = re.compile(r"X|NV[1-9]\d*|PIX|PXB|PHB|NODE|SYS")


@dataclass(frozen=True)
class Topology:
    """See stub.py."""

    kinds: tuple[tuple[str, ...], ...]
    bandwidth: tuple[tuple[float, ...], ...]
    cpus: tuple[frozenset[int], ...]
    numa: tuple[int | None, ...]
    nics: tuple[str, ...]
    nic_kinds: tuple[tuple[str, ...], ...]
    nic_gbit: tuple[float | None, ...]


def parse_topology(text: str) -> Topology:
    """Read a matrix of nvidia-smi or an NCCL topology file; see stub.py."""
    if text.lstrip().startswith("<"):
        return _parse_xml(text)
    return _parse_matrix(COLOUR.sub("", text))


def _parse_matrix(text: str) -> Topology:
    lines = text.splitlines()
    header = next((match for line in lines if (match := HEADER.match(line))), None)
    if header is None:
        raise ValueError("no line names GPU0 ... CPU Affinity: this is no `nvidia-smi topo -m`")
    columns = header[1].split()
    n = sum(re.fullmatch(r"GPU\d+", name) is not None for name in columns)
    says_numa = "NUMA Affinity" in header[2]
    # A row is its name, a cell per column, and what follows. Rows of NICs add nothing.
    rows = {words[0]: words[1:] for line in lines if (words := line.split())}
    kinds, nic_kinds, cpus, numa = [], [], [], []
    for i in range(n):
        if f"GPU{i}" not in rows:
            raise ValueError(f"the header names GPU{i}, but there is no row of that name")
        row = rows[f"GPU{i}"]
        if len(row) < len(columns) + 1 + says_numa:
            raise ValueError(f"row GPU{i} has {len(row)} cells; the header asks for more")
        for name, cell in zip(columns, row, strict=False):
            if not KIND.fullmatch(cell) or (cell == "X") != (name == f"GPU{i}"):
                raise ValueError(f"{cell!r} in row GPU{i}, column {name}, is no connection")
        kinds.append(tuple(row[:n]))
        nic_kinds.append(tuple(row[n : len(columns)]))
        cpus.append(_cpus_of_list(row[len(columns)]))
        node = row[len(columns) + 1] if says_numa else "N/A"
        numa.append(int(node) if node.isdecimal() else None)
    legend = dict(NIC_LEGEND.findall(text))
    nics = tuple(legend.get(name, name) for name in columns[n:])
    bandwidth = tuple(tuple(_matrix_gbps(kind) for kind in row) for row in kinds)
    return Topology(
        tuple(kinds),
        bandwidth,
        tuple(cpus),
        tuple(numa),
        nics,
        tuple(nic_kinds),
        (None,) * len(nics),
    )


def _matrix_gbps(kind: str) -> float:
    if kind == "X":
        return 0.0
    return int(kind[2:]) * MATRIX_NVLINK_GBPS if kind.startswith("NV") else PCI_GBPS[kind]


def _cpus_of_list(text: str) -> frozenset[int]:
    """ "0-2,8" as {0, 1, 2, 8}."""
    try:
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is no list of CPUs such as 0-23,48-71") from None
    return frozenset(cpu for ends in ranges for cpu in range(ends[0], ends[-1] + 1))


@dataclass(frozen=True)
class _Place:
    """A `<gpu>` or `<net>` and what is above it. chain: `<pci>` elements from the CPU down."""

    element: ElementTree.Element
    cpu: ElementTree.Element
    chain: tuple[ElementTree.Element, ...]


def _parse_xml(text: str) -> Topology:
    try:
        system = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the XML cannot be read: {error}") from None
    if system.tag != "system":
        raise ValueError(f"<{system.tag}> is no NCCL topology; it must begin with <system>")
    places = [place for cpu in system.iter("cpu") for place in _places(cpu, cpu, ())]
    gpus = _by_dev(place for place in places if place.element.tag == "gpu")
    nets = _by_dev(place for place in places if place.element.tag == "net")
    if [_int(gpu.element, "dev") for gpu in gpus] != list(range(len(gpus))) or not gpus:
        raise ValueError("the <gpu> elements are not numbered 0, 1, ... by dev")
    pairs = [[_connection(a, b) for b in gpus] for a in gpus]
    return Topology(
        tuple(tuple(kind for kind, _ in row) for row in pairs),
        tuple(tuple(gbps for _, gbps in row) for row in pairs),
        tuple(_cpus_of_mask(gpu.cpu.get("affinity", "")) for gpu in gpus),
        tuple(_int(gpu.cpu, "numaid") for gpu in gpus),
        tuple(net.element.get("name", "") for net in nets),
        tuple(tuple(_pci_kind(gpu, net) for net in nets) for gpu in gpus),
        tuple(_int(net.element, "speed") / 1000 for net in nets),
    )


def _places(
    element: ElementTree.Element,
    cpu: ElementTree.Element,
    chain: tuple[ElementTree.Element, ...],
) -> Iterator[_Place]:
    for child in element:
        if child.tag in ("gpu", "net"):
            yield _Place(child, cpu, chain)
        elif child.tag == "pci":
            yield from _places(child, cpu, (*chain, child))
        elif child.tag == "nic":
            yield from _places(child, cpu, chain)


def _by_dev(places: Iterator[_Place]) -> list[_Place]:
    return sorted(places, key=lambda place: _int(place.element, "dev"))


def _int(element: ElementTree.Element, name: str) -> int:
    try:
        return int(element.get(name, ""))
    except ValueError:
        raise ValueError(
            f"<{element.tag}> has {name}={element.get(name)!r}; valid: a whole number"
        ) from None


def _connection(a: _Place, b: _Place) -> tuple[str, float]:
    """Kind and GB/s from GPU a to GPU b. What b lists about a is the other direction."""
    if a is b:
        return "X", 0.0
    count = _links_to(a, b) or min(_links_to_switches(a), _links_to_switches(b))
    if count:
        return f"NV{count}", count * _nvlink_gbps(_int(a.element, "sm"))
    kind = _pci_kind(a, b)
    shared = len(_shared(a, b))
    lanes = [_lane_gbps(pci) for pci in (*a.chain[shared:], *b.chain[shared:])]
    return kind, min(PCI_GBPS[kind], *lanes)


def _links_to(a: _Place, b: _Place) -> int:
    return sum(
        _int(link, "count")
        for link in a.element.iter("nvlink")
        if link.get("target", "").lower() == b.chain[-1].get("busid", "").lower()
    )


def _links_to_switches(a: _Place) -> int:
    links = a.element.iter("nvlink")
    return sum(_int(x, "count") for x in links if x.get("tclass", "").startswith(NVSWITCH))


def _nvlink_gbps(sm: int) -> float:
    return {60: 20.0, 86: 14.0}.get(sm, 50.0 if sm >= 100 else 25.0)


def _shared(a: _Place, b: _Place) -> list[ElementTree.Element]:
    """What both chains begin with: the bridges above both."""
    both = []
    for x, y in zip(a.chain, b.chain, strict=False):
        if x is not y:
            break
        both.append(x)
    return both


def _pci_kind(a: _Place, b: _Place) -> str:
    if a.cpu is not b.cpu:
        return "SYS"
    shared = _shared(a, b)
    if not shared:
        return "PHB"
    below = (*a.chain[len(shared) :], *b.chain[len(shared) :])
    bridges = 1 + sum(pci.get("class", "").startswith(PCI_BRIDGE) for pci in below)
    return "PIX" if bridges == 1 else "PXB"


def _lane_gbps(pci: ElementTree.Element) -> float:
    """GB/s of the link above a device, inf where the file does not know it."""
    speed = re.match(r"\d+(\.\d+)?", pci.get("link_speed", ""))
    width = int(pci.get("link_width") or 0)
    return float(speed[0]) * width * GBPS_PER_GT_LANE if speed and width else math.inf


def _cpus_of_mask(text: str) -> frozenset[int]:
    """ "00000002,00000001" as {0, 33}: words of 32 bits, the highest first."""
    bits = 0
    try:
        for word in text.split(","):
            bits = bits << 32 | int(word, 16)
    except ValueError:
        raise ValueError(f"affinity {text!r} is no list of hexadecimal words") from None
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def ring_order(topology: Topology) -> list[int]:
    """The ring whose slowest link is fastest: binary search over the bandwidths; see stub.py."""
    bandwidth = topology.bandwidth
    n = len(bandwidth)
    if n <= 2:
        return list(range(n))
    levels = sorted({bandwidth[i][j] for i in range(n) for j in range(n) if i != j})
    best = list(range(n))  # the slowest level allows any ring
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        ring = _ring_at_least(bandwidth, levels[middle])
        if ring:
            best, low = ring, middle
        else:
            high = middle - 1
    return best


def _ring_at_least(bandwidth: tuple[tuple[float, ...], ...], least: float) -> list[int] | None:
    """A ring over all GPUs whose links all have `least` GB/s, or None.

    ends[visited]: bits of the GPUs at which a path can end that starts at GPU 0 and visits exactly
    the GPUs in the set `visited`. 2^(n-1) sets of n bits: 16 GPUs take 32,768 steps.
    """
    n = len(bandwidth)
    into = [sum(1 << i for i in range(n) if i != j and bandwidth[i][j] >= least) for j in range(n)]
    full = (1 << n) - 1
    ends = [0] * (1 << n)
    ends[1] = 1
    for visited in range(3, full + 1, 2):
        reached = 0
        for j in range(1, n):
            bit = 1 << j
            if visited & bit and ends[visited ^ bit] & into[j]:
                reached |= bit
        ends[visited] = reached
    last = ends[full] & into[0]
    if not last:
        return None
    order, visited = [], full
    while last:
        j = last.bit_length() - 1
        order.append(j)
        visited ^= 1 << j
        last = ends[visited] & into[j]
    return order[::-1]


def bind(topology: Topology, rank: int) -> tuple[frozenset[int], int | None, str | None]:
    """CPUs, NUMA node and NIC of a rank; see stub.py."""
    if not 0 <= rank < len(topology.kinds):
        raise ValueError(f"rank {rank}: this machine has ranks 0 to {len(topology.kinds) - 1}")
    used = [0] * len(topology.nics)
    chosen = None
    for gpu in range(rank + 1):  # what the ranks below take decides between equals
        chosen = _nearest_nic(topology, gpu, used)
        if chosen is not None:
            used[chosen] += 1
    nic = None if chosen is None else topology.nics[chosen]
    return topology.cpus[rank], topology.numa[rank], nic


def _nearest_nic(topology: Topology, gpu: int, used: list[int]) -> int | None:
    def cost(k: int) -> tuple[float, ...]:
        nearness = NEARNESS[topology.nic_kinds[gpu][k]]
        return nearness, -(topology.nic_gbit[k] or 0.0), used[k], k

    return min(range(len(topology.nics)), key=cost, default=None)
