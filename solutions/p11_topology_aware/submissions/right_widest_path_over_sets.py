# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""No thresholds: the widest ring by dynamic programming over sets; XML read with minidom."""

import re
from dataclasses import dataclass, field
from xml.dom import minidom
from xml.parsers.expat import ExpatError

import numpy as np

PCI = {"PIX": 24.0, "PXB": 20.0, "PHB": 16.0, "NODE": 12.0, "SYS": 8.0}
KIND = re.compile(r"NV\d+|" + "|".join(PCI))


@dataclass
class Topology:
    kinds: list = field(default_factory=list)
    bandwidth: np.ndarray | None = None
    cpus: list = field(default_factory=list)
    numa: list = field(default_factory=list)
    nics: list = field(default_factory=list)
    nic_kinds: list = field(default_factory=list)
    nic_gbit: list = field(default_factory=list)


def parse_topology(text: str) -> Topology:
    if "<system" in text:
        return from_xml(text)
    if "CPU Affinity" not in text:
        raise ValueError("the text is neither a matrix nor XML")
    return from_matrix(re.sub("\x1b.*?m", "", text))


def from_matrix(text: str) -> Topology:
    above, _, below = text.partition("CPU Affinity")
    columns = re.findall(r"\S+", above.splitlines()[-1])
    heading, _, body = below.partition("\n")
    gpus = [name for name in columns if re.fullmatch(r"GPU\d+", name)]
    cards = columns[len(gpus) :]
    result = Topology()
    for gpu in gpus:
        row = re.search(rf"^{gpu}\s(.*)$", body, re.M)
        words = row[1].split() if row else []
        if len(words) < len(columns) + 1 + ("NUMA Affinity" in heading):
            raise ValueError(f"{gpu} has no complete row")
        cells = dict(zip(columns, words, strict=False))
        for name, cell in cells.items():
            if cell != "X" if name == gpu else not KIND.fullmatch(cell):
                raise ValueError(f"{gpu} to {name}: {cell} is no connection")
        result.kinds.append([cells[name] for name in gpus])
        result.nic_kinds.append([cells[name] for name in cards])
        cpus, node, *_ = [*words[len(columns) :], "N/A"]
        result.cpus.append(
            [
                c
                for a, b in re.findall(r"(\d+)(?:-(\d+))?", cpus)
                for c in range(int(a), int(b or a) + 1)
            ]
        )
        result.numa.append(int(node) if "NUMA Affinity" in heading and node.isdigit() else None)
    legend = dict(re.findall(r"(NIC\d+):\s+(\S+)", body))
    result.nics = [legend.get(card, card) for card in cards]
    result.nic_gbit = [None] * len(cards)
    result.bandwidth = np.array([[speed(kind, 25.0) for kind in row] for row in result.kinds])
    return result


def speed(kind: str, link: float) -> float:
    if kind == "X":
        return 0.0
    return PCI[kind] if kind in PCI else link * int(kind[2:])


def from_xml(text: str) -> Topology:
    try:
        document = minidom.parseString(text)
    except ExpatError as error:
        raise ValueError(f"the XML is broken: {error}") from error

    def number(element):
        return int(element.getAttribute("dev"))

    gpus = sorted(document.getElementsByTagName("gpu"), key=number)
    nets = sorted(document.getElementsByTagName("net"), key=number)
    result = Topology()
    result.bandwidth = np.zeros((len(gpus), len(gpus)))
    for i, gpu in enumerate(gpus):
        result.kinds.append([])
        for j, other in enumerate(gpus):
            kind = connection(gpu, other)
            result.kinds[i].append(kind)
            generation = int(gpu.getAttribute("sm"))
            link = 50.0 if generation >= 100 else {60: 20.0, 86: 14.0}.get(generation, 25.0)
            narrow = lanes(gpu, other) if kind in PCI else np.inf
            result.bandwidth[i, j] = min(speed(kind, link), narrow)
        node = ups(gpu)[-1]
        value = int(node.getAttribute("affinity").replace(",", ""), 16)
        result.cpus.append([c for c in range(value.bit_length()) if value & 1 << c])
        result.numa.append(int(node.getAttribute("numaid")))
        result.nic_kinds.append([pci_kind(gpu, net) for net in nets])
    result.nics = [net.getAttribute("name") for net in nets]
    result.nic_gbit = [int(net.getAttribute("speed")) / 1e3 for net in nets]
    return result


def ups(element) -> list:
    """What is above an element: <pci>, <pci>, ..., <cpu>."""
    above = []
    while element.tagName != "cpu":
        element = element.parentNode
        if element.tagName != "nic":
            above.append(element)
    return above


def busid(gpu) -> str:
    return gpu.parentNode.getAttribute("busid").lower()


def connection(a, b) -> str:
    if a is b:
        return "X"
    counts: dict[str, int] = {}
    for end, gpu in (("a", a), ("b", b)):
        for link in gpu.getElementsByTagName("nvlink"):
            switch = link.getAttribute("tclass").startswith("0x0680")
            key = end if switch else end + link.getAttribute("target").lower()
            counts[key] = counts.get(key, 0) + int(link.getAttribute("count"))
    links = counts.get("a" + busid(b), 0) or min(counts.get("a", 0), counts.get("b", 0))
    return f"NV{links}" if links else pci_kind(a, b)


def pci_kind(a, b) -> str:
    above_a, above_b = ups(a), ups(b)
    both = [x for x in above_a if any(x is y for y in above_b)]
    if not both:
        return "SYS"
    if both[0].tagName == "cpu":
        return "PHB"
    return "PIX" if above_a[1] is both[0] is above_b[1] else "PXB"


def lanes(a, b) -> float:
    above_a, above_b = ups(a), ups(b)
    apart = [x for x in above_a + above_b if not (x in above_a and x in above_b)]
    rates = [np.inf]
    for pci in apart:
        width = int(pci.getAttribute("link_width") or 0) if pci.tagName == "pci" else 0
        if width:
            rates.append(float(pci.getAttribute("link_speed").split()[0]) * width * 3 / 32)
    return min(rates)


def ring_order(topology: Topology) -> np.ndarray:
    """widest[visited, j]: the widest path from GPU 0 through `visited` to j."""
    speeds = np.asarray(topology.bandwidth)
    n = len(speeds)
    widest = np.full((1 << n, n), -np.inf)
    before = np.zeros((1 << n, n), int)
    widest[1, 0] = np.inf
    sets = np.arange(1, 1 << n, 2)
    for visited_count in range(2, n + 1):
        these = sets[[int(s).bit_count() == visited_count for s in sets]]
        for j in range(1, n):
            ending = these[these >> j & 1 == 1]
            ways = np.minimum(widest[ending ^ 1 << j], speeds[:, j])
            widest[ending, j], before[ending, j] = ways.max(1), ways.argmax(1)
    here = int(np.minimum(widest[-1], speeds[:, 0]).argmax()) if n > 1 else 0
    order, visited = [], (1 << n) - 1
    while visited:
        order.append(here)
        visited, here = visited ^ 1 << here, int(before[visited, here])
    return np.array(order[::-1])


def bind(topology: Topology, rank: int) -> list:
    if rank not in range(len(topology.kinds)):
        raise ValueError(f"no GPU has the number {rank}")
    taken = np.zeros(len(topology.nics), int)
    speeds = [gbit or 0 for gbit in topology.nic_gbit]
    nic = None
    for gpu in range(rank + 1):
        if not topology.nics:
            break
        nearness = [-PCI[kind] for kind in topology.nic_kinds[gpu]]
        k = np.lexsort((taken, -np.array(speeds), nearness))[0]
        taken[k] += 1
        nic = topology.nics[k]
    return [topology.cpus[rank], topology.numa[rank], nic]
