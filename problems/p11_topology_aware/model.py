"""What a machine is made of, and the texts that nvidia-smi and NCCL print about it.

Everything follows from where each device is plugged in: the kinds of connections, the bandwidths,
and both texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

GBPS = {"PIX": 24.0, "PXB": 20.0, "PHB": 16.0, "NODE": 12.0, "SYS": 8.0}
NEAREST_FIRST = tuple(GBPS)
MATRIX_NVLINK_GBPS = 25.0
STYLES = ("2018", "2021", "2023")
LEGEND = """
Legend:

  X    = Self
  SYS  = Path over PCIe and over the interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Path over PCIe and between host bridges of one NUMA node
  PHB  = Path over PCIe and one host bridge (typically the CPU)
  PXB  = Path over several PCIe bridges (without the host bridge)
  PIX  = Path over at most one PCIe bridge
  NV#  = Path over a bonded set of # NVLinks
"""


def nvlink_gbps(sm: int) -> float:
    """GB/s of one NVLink in one direction, by compute capability."""
    return {60: 20.0, 86: 14.0}.get(sm, 50.0 if sm >= 100 else 25.0)


@dataclass(frozen=True)
class Bridge:
    """A PCIe switch. speed, width: GT/s and lanes of its link upwards; width 0: unknown."""

    busid: str
    speed: float = 16.0
    width: int = 16


@dataclass(frozen=True)
class Device:
    """A GPU or a NIC port. path: the bridges above it, the outermost first. root: host bridge."""

    busid: str
    numa: int
    root: int
    path: tuple[Bridge, ...] = ()
    speed: float = 16.0
    width: int = 16
    name: str = ""
    mbit: int = 0
    on_pci: bool = True

    @property
    def lanes(self) -> tuple[Bridge, ...]:
        """The PCIe links from the CPU down to the device, its own included."""
        return (*self.path, Bridge(self.busid, self.speed, self.width)) if self.on_pci else ()


@dataclass(frozen=True)
class Machine:
    """Ground truth. links[i, j]: NVLinks listed under GPU i towards GPU j. switched[i]: NVLinks
    from GPU i to the NVSwitches. nodes: (NUMA node, its CPUs) in the order of the file."""

    name: str
    sm: int
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    nodes: tuple[tuple[int, frozenset[int]], ...]
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    switched: tuple[int, ...] = ()
    says_numa: bool = True

    def shuffled(self, rng: np.random.Generator) -> Machine:
        """The same machine with its GPUs and NICs numbered otherwise."""
        gpu, nic = rng.permutation(len(self.gpus)), rng.permutation(len(self.nics))
        new = {int(old): i for i, old in enumerate(gpu)}
        return replace(
            self,
            gpus=tuple(self.gpus[i] for i in gpu),
            nics=tuple(replace(self.nics[k], name=self.nics[i].name) for i, k in enumerate(nic)),
            links={(new[i], new[j]): count for (i, j), count in self.links.items()},
            switched=tuple(self.switched[i] for i in gpu) if self.switched else (),
        )

    def truth(self, form: str) -> dict[str, Any]:
        """What Topology must hold after reading the text `form`, as arrays."""
        n, xml = len(self.gpus), form == "xml"
        kinds = [[self._kind(i, j, xml) for j in range(n)] for i in range(n)]
        fast = [[self._gbps(i, j, kinds[i][j], xml) for j in range(n)] for i in range(n)]
        near = [[pci_kind(gpu, nic, xml) for nic in self.nics] for gpu in self.gpus]
        known = self.says_numa and form != "2018"
        cpus = dict(self.nodes)
        return {
            "kinds": np.array(kinds, dtype="U16"),
            "bandwidth": np.array(fast, dtype=np.float64),
            "cpus": [cpus[gpu.numa] for gpu in self.gpus],
            "numa": np.array([g.numa if known or xml else -1 for g in self.gpus], dtype=np.int64),
            "nics": np.array([nic.name for nic in self.nics], dtype="U64"),
            "nic_kinds": np.array(near, dtype="U16").reshape(n, len(self.nics)),
            "nic_gbit": np.array([x.mbit / 1000 if xml else np.nan for x in self.nics], float),
        }

    def text(self, form: str, *, colour: bool = False, spaces: bool = False) -> str:
        """The machine as a matrix of one of STYLES, or as "xml"."""
        return xml_text(self) if form == "xml" else matrix_text(self, form, colour, spaces)

    def _kind(self, i: int, j: int, xml: bool) -> str:
        if i == j:
            return "X"
        if self.links.get((i, j)):
            return f"NV{self.links[i, j]}"
        if self.switched and min(self.switched[i], self.switched[j]):
            return f"NV{min(self.switched[i], self.switched[j])}"
        return pci_kind(self.gpus[i], self.gpus[j], xml)

    def _gbps(self, i: int, j: int, kind: str, xml: bool) -> float:
        if kind == "X":
            return 0.0
        if kind.startswith("NV"):
            return int(kind[2:]) * (nvlink_gbps(self.sm) if xml else MATRIX_NVLINK_GBPS)
        return min(GBPS[kind], narrowest(self.gpus[i], self.gpus[j])) if xml else GBPS[kind]


def pci_kind(a: Device, b: Device, xml: bool) -> str:
    """How two devices reach each other without NVLink. XML shows no host bridges."""
    if a.numa != b.numa:
        return "SYS"
    if a.root != b.root and not xml:
        return "NODE"
    shared = len(_shared(a, b))
    if not shared:
        return "PHB"
    return "PIX" if len(a.path) + len(b.path) - 2 * shared + 1 == 1 else "PXB"


def narrowest(a: Device, b: Device) -> float:
    """GB/s of the slowest PCIe link between two devices; inf where none is known."""
    shared = len(_shared(a, b))
    on_the_way = (*a.lanes[shared:], *b.lanes[shared:])
    return min((p.speed * p.width * 3 / 32 for p in on_the_way if p.width), default=np.inf)


def _shared(a: Device, b: Device) -> list[Bridge]:
    pairs = zip(a.path, b.path, strict=False)
    return [x for x, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


def cpu_list(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 8} as "0-2,8"."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(cpus)), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)


def matrix_text(machine: Machine, style: str, colour: bool, spaces: bool) -> str:
    """2018: "CPU Affinity" alone. 2021: and "NUMA Affinity". 2023: NIC0, NIC1, a legend of NICs,
    and "GPU NUMA ID". spaces: as it looks when copied from a terminal."""
    truth, cpus = machine.truth(style), dict(machine.nodes)
    names = [f"NIC{k}" if style == "2023" else nic.name for k, nic in enumerate(machine.nics)]
    heads = [f"GPU{i}" for i in range(len(machine.gpus))]
    tail = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][: STYLES.index(style) + 1]
    rows = []
    for i, gpu in enumerate(machine.gpus):
        cells = [" X " if kind == "X" else kind for kind in truth["kinds"][i]]
        node = str(gpu.numa) if machine.says_numa else "N/A"
        ending = {"2018": [], "2021": [node], "2023": [node, "", "N/A"]}[style]
        rows.append([heads[i], *cells, *truth["nic_kinds"][i], cpu_list(cpus[gpu.numa]), *ending])
    for k, nic in enumerate(machine.nics):
        others = [pci_kind(nic, x, False) if x is not nic else " X " for x in machine.nics]
        rows.append([names[k], *truth["nic_kinds"][:, k], *others, *[""] * len(tail)])
    line = "\t".join([*heads, *names, *tail])
    head = f"\t\x1b[4m{line}\x1b[0m" if colour else f"\t{line}"
    text = "\n".join([head, *("\t".join(row) for row in rows)]) + "\n" + LEGEND
    if style == "2023" and machine.nics:
        text += "\nNIC Legend:\n\n"
        text += "".join(f"  NIC{k}: {nic.name}\n" for k, nic in enumerate(machine.nics))
    return text.expandtabs(8) if spaces else text


def mask(cpus: Iterable[int], width: int) -> str:
    """CPU numbers as hexadecimal words of 32, the highest first: {0, 33} as "00000002,00000001"."""
    bits = sum(1 << cpu for cpu in cpus)
    words = [bits >> 32 * word & 0xFFFFFFFF for word in reversed(range(-(-width // 32)))]
    return ",".join(f"{word:08x}" for word in words)


def xml_text(machine: Machine) -> str:
    """The file that NCCL writes to NCCL_TOPO_DUMP_FILE and reads from NCCL_TOPO_FILE."""
    lines = ['<system version="1">']
    width = max(cpu for _, cpus in machine.nodes for cpu in cpus) + 1
    for node, cpus in machine.nodes:
        lines.append(
            f'  <cpu numaid="{node}" affinity="{mask(cpus, width)}" arch="x86_64" '
            'vendor="AuthenticAMD" familyid="143" modelid="49">'
        )
        devices = [d for d in (*machine.gpus, *machine.nics) if d.numa == node]
        lines += _elements(machine, devices, 0)
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def _elements(machine: Machine, devices: list[Device], depth: int) -> list[str]:
    """Elements of the devices below one bridge, by bus id, whatever numbers they go by."""
    lines, pad = [], "  " * (depth + 2)
    places: dict[str, list[Device]] = {}
    for device in devices:
        inner = device.path[depth:]
        places.setdefault(inner[0].busid if inner else device.busid, []).append(device)
    for busid, members in sorted(places.items()):
        first = members[0]
        if len(first.path) > depth:
            bridge = first.path[depth]
            opening = _pci(busid, "0x060400", bridge.speed, bridge.width)
            below = _elements(machine, members, depth + 1)
        else:
            kind = "0x020700" if first.mbit else "0x030200"
            opening = _pci(busid, kind, first.speed, first.width)
            leaves = _nic(machine, members) if first.mbit else _gpu(machine, first)
            below = [f"{pad}  {line}" for line in leaves]
        if first.on_pci:
            lines += [f"{pad}{opening}>", *below, f"{pad}</pci>"]
        else:
            lines += [line.removeprefix("  ") for line in below]
    return lines


def _pci(busid: str, kind: str, speed: float, width: int) -> str:
    rate = f"{speed:.1f} GT/s PCIe" if width else ""
    return f'<pci busid="{busid}" class="{kind}" link_speed="{rate}" link_width="{width}"'


def _nic(machine: Machine, ports: list[Device]) -> list[str]:
    lines = []
    for port in ports:
        k = machine.nics.index(port)
        lines.append(
            f'  <net name="{port.name}" dev="{k}" speed="{port.mbit}" port="1" '
            f'latency="0.000000" guid="0x{0xA262550003A1 + k:016x}" maxconn="131072" gdr="1"/>'
        )
    return ["<nic>", *lines, "</nic>"]


def _gpu(machine: Machine, device: Device) -> list[str]:
    i = machine.gpus.index(device)
    lines = [
        f'  <nvlink target="{machine.gpus[j].busid}" count="{count}" tclass="0x030200"/>'
        for (source, j), count in sorted(machine.links.items())
        if source == i and count
    ]
    if machine.switched:  # spread over six switches, as evenly as it goes
        total = machine.switched[i]
        each = [total // 6 + (s < total % 6) for s in range(6)]
        lines += [
            f'  <nvlink target="0000:c{4 + s}:00.0" count="{count}" tclass="0x068000"/>'
            for s, count in enumerate(each)
            if count
        ]
    head = f'<gpu dev="{i}" sm="{machine.sm}" rank="{i}" gdr="1"'
    return [head + ">", *lines, "</gpu>"] if lines else [head + "/>"]
