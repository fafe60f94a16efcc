"""How a process learns which rank it is: one map of variable names per launcher.

It needs nothing but the standard library, so it can be copied to a host as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class RankError(Exception):
    """The environment does not say which rank this is, or says something impossible."""


@dataclass(frozen=True)
class RankPlace:
    """Where a rank stands. local_*: among the ranks of its host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str

    def __post_init__(self) -> None:
        for name, value, size in (
            ("rank", self.rank, self.world_size),
            ("local rank", self.local_rank, self.local_world_size),
        ):
            if not 0 <= value < size:
                raise RankError(f"{self.launcher}: {name} {value} is not in 0..{size - 1}")


@dataclass(frozen=True)
class RankVariables:
    """Names that one launcher gives. The local ones may be absent, the first two may not.

    steps: whether `local_world_size` is a Slurm list such as `2(x3),1`, of which `node` is the
    index.
    """

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node: str | None = None


# Order matters: torchrun and mpirun are often started by srun, whose variables then describe the
# launcher and not the rank.
LAUNCHERS = (
    RankVariables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    RankVariables(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    RankVariables("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    RankVariables(
        "slurm",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NODEID",
    ),
)


def read_rank(environ: Mapping[str, str]) -> RankPlace:
    """Return the place that the first launcher found in `environ` gives this process.

    Raises RankError listing what was looked for when there is none, and naming the variable when
    its value is impossible.
    """
    for names in LAUNCHERS:
        if names.rank in environ and names.world_size in environ:
            return _place(names, environ)
    looked_for = "; ".join(f"{n.launcher}: {n.rank} and {n.world_size}" for n in LAUNCHERS)
    half = [v for n in LAUNCHERS for v in (n.rank, n.world_size) if v in environ]
    found = f" (only {', '.join(half)} is set)" if half else ""
    raise RankError(f"no launcher says which rank this is{found}; looked for {looked_for}")


def torchrun_environment(place: RankPlace, node: int, nodes: int) -> dict[str, str]:
    """Return what torchrun sets for `place` on host number `node` of `nodes`, rendezvous aside."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": "default",
    }


def _place(names: RankVariables, environ: Mapping[str, str]) -> RankPlace:
    rank, size = _number(names.rank, environ), _number(names.world_size, environ)
    if names.local_rank not in environ:
        return RankPlace(rank, size, 0, 1, names.launcher)
    local_rank = _number(names.local_rank, environ)
    if names.local_world_size not in environ:
        return RankPlace(rank, size, local_rank, local_rank + 1, names.launcher)
    if names.node is None:
        local_size = _number(names.local_world_size, environ)
    else:
        node = _number(names.node, environ) if names.node in environ else 0
        local_size = _tasks_on_node(names.local_world_size, environ, node)
    return RankPlace(rank, size, local_rank, local_size, names.launcher)


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name]
    if not text.isascii() or not text.isdigit():
        raise RankError(f"{name}={text!r} is not a whole number")
    return int(text)


def _tasks_on_node(name: str, environ: Mapping[str, str], node: int) -> int:
    """Read Slurm's run-length list, `2(x3),1`: three nodes with two tasks, one with one."""
    counts: list[int] = []
    for part in environ[name].split(","):
        count, _, repeat = part.partition("(x")
        try:
            counts += [int(count)] * (int(repeat.rstrip(")")) if repeat else 1)
        except ValueError as error:
            raise RankError(f"{name}={environ[name]!r} is not a list like 2(x3),1") from error
    if node >= len(counts):
        raise RankError(f"{name}={environ[name]!r} has no entry for node {node}")
    return counts[node]
