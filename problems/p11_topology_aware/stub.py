"""Read a machine's topology, choose a ring over its GPUs, and bind each rank to what is near it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """What a text says about one machine of n GPUs and m network cards (NICs).

    Keep these names: the grader reads them. Lists do as well as tuples. GPU i is row and column
    `GPUi` of the matrix, or `<gpu dev="i">` in XML; GPUs are numbered 0 to n-1.
    """

    kinds: tuple[tuple[str, ...], ...]
    """n x n. kinds[i][j]: the best connection from GPU i to GPU j: "NV4" (four NVLinks), "PIX",
    "PXB", "PHB", "NODE" or "SYS"; "X" where i == j."""

    bandwidth: tuple[tuple[float, ...], ...]
    """n x n, GB/s in the direction i to j; 0.0 where i == j. The card's tables say how much."""

    cpus: tuple[frozenset[int], ...]
    """n. cpus[i]: numbers of the logical CPUs that are local to GPU i."""

    numa: tuple[int | None, ...]
    """n. numa[i]: NUMA node of GPU i, None where the text does not say (no column, or "N/A")."""

    nics: tuple[str, ...]
    """m. Names of the NICs ("mlx5_0"): in the order of the columns, or by `<net dev>` in XML."""

    nic_kinds: tuple[tuple[str, ...], ...]
    """n x m. nic_kinds[i][k]: connection of GPU i and NIC k, "PIX" to "SYS". n empty rows where
    m is 0."""

    nic_gbit: tuple[float | None, ...]
    """m. Speed of each NIC in Gbit/s, None where the text does not say (the matrix never does)."""


def parse_topology(text: str) -> Topology:
    """Read the output of `nvidia-smi topo -m`, of any driver, or an NCCL topology file (XML).

    text: the whole output, as captured: with or without colour codes, separated by tabs or, after
        copying from a terminal, by spaces. 1 to 16 GPUs, 0 to 32 NICs.

    Raises ValueError with a sentence when `text` is neither, when a row or a cell of the matrix is
    missing, or when a connection is of a kind that does not exist.
    """
    raise NotImplementedError


def ring_order(topology: Topology) -> list[int]:
    """The order in which a ring visits the GPUs so that its slowest link is as fast as it can be.

    Every GPU once. Data flows from order[k] to order[k+1] and from the last to order[0]; links have
    a direction. Among equally good orders, any. [0] for one GPU. At most 2 s for 16 GPUs.
    """
    raise NotImplementedError


def bind(topology: Topology, rank: int) -> tuple[frozenset[int], int | None, str | None]:
    """Where rank `rank`, which runs GPU `rank`, belongs: (its CPUs, NUMA node, name of its NIC).

    The NIC is the nearest one (PIX before PXB, PHB, NODE, SYS). Among equally near ones: the
    fastest, where the text says; then the one to which the fewest of the ranks 0 to rank-1 were
    bound; then the first. None where there is no NIC.

    Raises ValueError when `rank` is not one of 0 to n-1.
    """
    raise NotImplementedError
