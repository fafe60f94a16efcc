"""Machines that are sold, and machines drawn at grading time.

    python data.py                         list the machines
    python data.py dgx_a100 2023           print one as a matrix (2018, 2021, 2023) or as xml
    python data.py my_topo.txt my.py       what your solution reads from your own machine's text

The checks shuffle the numbers of GPUs and NICs before they print, so nothing can be known before.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from model import Bridge, Device, Machine, cpu_list


def halves(cores: int, nodes: int) -> tuple[tuple[int, frozenset[int]], ...]:
    """NUMA nodes of `cores` cores each, numbered through, and their second threads after them."""
    total = cores * nodes
    return tuple(
        (n, frozenset(c + t for t in (0, total) for c in range(n * cores, (n + 1) * cores)))
        for n in range(nodes)
    )


def both_ways(links: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    return links | {(j, i): count for (i, j), count in links.items()}


def dgx1_v100() -> Machine:
    """Eight V100 in a hybrid cube mesh, two to a PCIe switch, one NIC at each switch."""
    gpus, nics = [], []
    for i in range(8):
        node, pair = i // 4, i // 2
        bus = (0x05, 0x09, 0x84, 0x88)[pair]
        switch = Bridge(f"0000:{bus:02x}:00.0", 8.0)
        gpus.append(Device(f"0000:{bus + 1 + i % 2:02x}:00.0", node, pair, (switch,), 8.0))
        if i % 2:
            place = f"0000:{bus + 3:02x}:00.0"
            nic = Device(place, node, pair, (switch,), 8.0, 16, f"mlx5_{pair}", 100_000)
            nics.append(nic)
    one = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    two = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    links = both_ways(dict.fromkeys(one, 1) | dict.fromkeys(two, 2))
    return Machine("dgx1_v100", 70, tuple(gpus), tuple(nics), halves(20, 2), links)


def dgx_a100() -> Machine:
    """Eight A100 behind NVSwitches. Four NUMA nodes a socket, of which every other has GPUs, and
    their numbers do not ascend with the buses. Two NICs to a pair of GPUs; a card of two ports."""
    gpus, nics = [], []
    for pair, (node, bus) in enumerate(zip((3, 1, 7, 5), (0x01, 0x41, 0x81, 0xB1), strict=True)):
        top = Bridge(f"0000:{bus:02x}:00.0")
        left, right = Bridge(f"0000:{bus + 2:02x}:00.0"), Bridge(f"0000:{bus + 9:02x}:00.0")
        for k in range(2):
            gpus.append(Device(f"0000:{bus + 6 + k:02x}:00.0", node, pair, (top, left)))
            place = f"0000:{bus + 11 + k:02x}:00.0"
            nics.append(Device(place, node, pair, (top, right), mbit=200_000))
    nics += [Device("0000:e1:00.0", 4, 9, mbit=mbit) for mbit in (200_000, 100_000)]
    named = tuple(replace(nic, name=f"mlx5_{k}") for k, nic in enumerate(nics))
    cpus = dict(halves(16, 8))
    nodes = tuple((node, cpus[node]) for node in (3, 1, 0, 2, 7, 5, 4, 6))
    return Machine("dgx_a100", 80, tuple(gpus), named, nodes, switched=(12,) * 8)


def hgx_h100() -> Machine:
    """Eight H100, a 400 Gbit/s NIC at the switch of each, and two slow ones for the rest."""
    gpus, nics = [], []
    for i in range(8):
        bus = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)[i]
        switch = Bridge(f"0000:{bus:02x}:00.0", 32.0)
        gpus.append(Device(f"0000:{bus + 2:02x}:00.0", i // 4, i, (switch,), 32.0))
        place = f"0000:{bus + 3:02x}:00.0"
        nics.append(Device(place, i // 4, i, (switch,), 32.0, 16, f"mlx5_{i + i // 4}", 400_000))
    for name, bus, node in (("mlx5_4", 0x10, 0), ("mlx5_bond_0", 0x90, 1)):
        nics.append(Device(f"0000:{bus:02x}:00.0", node, 10 + node, (), 16.0, 16, name, 25_000))
    nics.sort(key=lambda nic: nic.name)
    return Machine("hgx_h100", 90, tuple(gpus), tuple(nics), halves(56, 2), switched=(18,) * 8)


def workstation() -> Machine:
    """Four cards, PCIe alone: two below one switch, one at the same host bridge, one elsewhere."""
    switch = Bridge("0000:01:00.0")
    gpus = (
        Device("0000:02:00.0", 0, 0, (switch,)),
        Device("0000:03:00.0", 0, 0, (switch,)),
        Device("0000:21:00.0", 0, 0),
        Device("0000:41:00.0", 0, 1),
    )
    nic = Device("0000:61:00.0", 0, 1, speed=8.0, width=4, name="enp97s0f0", mbit=10_000)
    cpus = ((0, frozenset(range(32))),)
    return Machine("workstation", 86, gpus, (nic,), cpus)


def bridged_pairs() -> Machine:
    """Six A6000 in two sockets. NVLink bridges join cards that sit in *different* sockets, so a
    ring can avoid the link between the sockets. CPU numbers alternate between the sockets."""
    gpus = tuple(Device(f"0000:{0x10 * (i + 1):02x}:00.0", i // 3, i) for i in range(6))
    nics = tuple(
        Device(f"0000:{bus:02x}:00.0", node, root, name=name, mbit=100_000)
        for bus, node, root, name in ((0x11, 0, 0, "mlx5_0"), (0xA1, 1, 7, "mlx5_1"))
    )
    links = both_ways({(0, 3): 4, (1, 4): 4, (2, 5): 4})
    cpus = tuple((node, frozenset(range(node, 48, 2))) for node in range(2))
    return Machine("bridged_pairs", 86, gpus, nics, cpus, links)


def epyc_nps4() -> Machine:
    """Four A100 PCIe cards in an EPYC that shows four NUMA nodes; one card trained to 4 lanes."""
    places = ((0xC1, 0), (0x81, 1), (0x41, 2), (0x01, 3))
    gpus = tuple(
        Device(f"0000:{bus:02x}:00.0", node, node, width=4 if node == 2 else 16)
        for bus, node in sorted(places)
    )
    nics = (
        Device("0000:42:00.0", 2, 2, name="mlx5_0", mbit=100_000),
        Device("0000:43:00.0", 2, 5, name="mlx5_1", mbit=200_000),
    )
    nodes = tuple(reversed(halves(8, 4)))
    links = both_ways({(0, 1): 4, (2, 3): 4})
    return Machine("epyc_nps4", 80, gpus, nics, nodes, links)


def laptop() -> Machine:
    """Two GPUs, one inside and one in a box; no NIC that counts, NUMA unknown."""
    gpus = (
        Device("0000:01:00.0", 0, 0, width=8),
        Device("0000:2f:00.0", 0, 1, (Bridge("0000:2c:00.0", 8.0, 4),), 8.0, 4),
    )
    return Machine("laptop", 86, gpus, (), ((0, frozenset(range(16))),), says_numa=False)


def virtual_machine() -> Machine:
    """A cloud's virtual machine: links of unknown width, and NICs that hang at no PCIe device."""
    gpus = tuple(Device(f"{i + 1:04x}:00:00.0", i // 2, i, speed=0.0, width=0) for i in range(4))
    nics = tuple(
        Device(f"{k}", k % 2, 8 + k, name=name, mbit=mbit, on_pci=False)
        for k, (name, mbit) in enumerate((("eth0", 10_000), ("eth1", 50_000), ("hsn0", 200_000)))
    )
    cpus = halves(24, 2)
    return Machine("virtual_machine", 80, gpus, nics, cpus, both_ways({(0, 2): 4, (1, 3): 2}))


def dgx2_v100() -> Machine:
    """Sixteen V100 behind NVSwitches, four to a PCIe tree, NICs next to each pair of GPUs."""
    gpus, nics = [], []
    for tree in range(4):
        bus = (0x20, 0x60, 0xA0, 0xD0)[tree]
        top = Bridge(f"0000:{bus:02x}:00.0", 8.0)
        for pair in range(2):
            switch = Bridge(f"0000:{bus + 1 + 8 * pair:02x}:00.0", 8.0)
            path, node = (top, switch), tree // 2
            for k in range(2):
                place = f"0000:{bus + 2 + 8 * pair + k:02x}:00.0"
                gpus.append(Device(place, node, tree, path, 8.0))
            place = f"0000:{bus + 5 + 8 * pair:02x}:00.0"
            nics.append(Device(place, node, tree, path, 8.0, name="mlx5", mbit=100_000))
    named = tuple(replace(nic, name=f"mlx5_{k}") for k, nic in enumerate(nics))
    return Machine("dgx2_v100", 70, tuple(gpus), named, halves(24, 2), switched=(6,) * 16)


MACHINES = {
    make.__name__: make
    for make in (
        dgx1_v100,
        dgx_a100,
        hgx_h100,
        workstation,
        bridged_pairs,
        epyc_nps4,
        laptop,
        virtual_machine,
        dgx2_v100,
    )
}


def drawn(rng: np.random.Generator, n: int, *, one_way: bool = False) -> Machine:
    """A machine of n GPUs in random slots whose NVLinks hold one good ring and many decoys.

    one_way: some links are listed in one direction only.
    """
    tops = [Bridge(f"0000:{0x10 + t:02x}:00.0") for t in range(4)]
    gpus = []
    for i, top in enumerate(rng.integers(0, 4, n)):
        path = (tops[top],) if rng.random() < 0.6 else ()
        gpus.append(Device(f"0000:{0x40 + 3 * i:02x}:00.0", int(top) // 2, int(top), path))
    gpus.sort(key=lambda gpu: (gpu.path[0].busid if gpu.path else gpu.busid, gpu.busid))
    nics = tuple(
        Device(f"0000:{0xD0 + k:02x}:00.0", k % 2, 9 + k, name=f"mlx5_{k}", mbit=100_000)
        for k in range(2)
    )
    ring = rng.permutation(n)
    links: dict[tuple[int, int], int] = {}
    for a, b in itertools.combinations(range(n), 2):
        if rng.random() < 0.3:
            links |= both_ways({(a, b): int(rng.choice([1, 1, 4, 6]))})
    for a, b in zip(ring, np.roll(ring, -1), strict=True):
        links |= both_ways({(int(a), int(b)): int(rng.choice([2, 3]))})
    if one_way:
        for a, b in zip(ring, np.roll(ring, -1), strict=True):
            if rng.random() < 0.6:
                del links[int(b), int(a)]
    machine = Machine(f"drawn_{n}_gpus", 80, tuple(gpus), nics, halves(12, 2), links)
    return machine.shuffled(rng)


def lopsided_four(rng: np.random.Generator) -> Machine:
    """Four GPUs in a square of double NVLinks, with one strong diagonal and one that is missing.

    One side of the square is lost in one direction, so the ring may run one way round only.
    """
    gpus = tuple(Device(f"0000:{0x10 * (i + 1):02x}:00.0", i % 2, i) for i in range(4))
    nics = (Device("0000:81:00.0", 0, 9, name="mlx5_0", mbit=100_000),)
    a, b, c, d = (int(i) for i in rng.permutation(4))
    links = both_ways({(a, b): 2, (b, c): 2, (c, d): 2, (d, a): 2, (a, c): 4})
    del links[b, a]
    return Machine("lopsided_four", 80, gpus, nics, halves(8, 2), links)


def with_lost_links(machine: Machine, rng: np.random.Generator) -> Machine:
    """One GPU has lost two of its NVLinks to the switches, another one all of them."""
    hurt, cut = rng.permutation(len(machine.gpus))[:2]
    switched = [
        0 if i == cut else count - 2 * (i == hurt) for i, count in enumerate(machine.switched)
    ]
    return replace(machine, switched=tuple(switched)).shuffled(rng)


def _show(path: Path, solution: Path) -> None:
    spec = importlib.util.spec_from_file_location("your_solution", solution)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["your_solution"] = module
    spec.loader.exec_module(module)
    topology = module.parse_topology(path.read_text())
    order = [int(gpu) for gpu in module.ring_order(topology)]
    print("\t" + "\t".join([f"GPU{i}" for i in range(len(topology.kinds))] + list(topology.nics)))
    for i, kinds in enumerate(topology.kinds):
        print("\t".join([f"GPU{i}", *kinds, *topology.nic_kinds[i], cpu_list(topology.cpus[i])]))
    hops = zip(order, order[1:] + order[:1], strict=True)
    slowest = min((topology.bandwidth[i][j] for i, j in hops if i != j), default=float("inf"))
    print(f"\nring {order}, slowest link {slowest:g} GB/s")
    for rank in range(len(topology.kinds)):
        cpus, node, nic = module.bind(topology, rank)
        print(f"rank {rank}: CPUs {cpu_list(cpus)}, NUMA node {node}, NIC {nic}")


def main(words: list[str]) -> None:
    if not words:
        print("\n".join(f"{name}: {make.__doc__}" for name, make in MACHINES.items()))
    elif words[0] in MACHINES:
        print(MACHINES[words[0]]().text(words[1] if len(words) > 1 else "2023"), end="")
    elif len(words) == 2:
        _show(Path(words[0]), Path(words[1]))
    else:
        sys.exit("give the name of a machine and a format, or your text and your solution")


if __name__ == "__main__":
    main(sys.argv[1:])
