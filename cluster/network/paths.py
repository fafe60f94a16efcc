"""Which packets a fault applies to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations

from cluster.network.netem import CUT, Netem


@dataclass(frozen=True, order=True)
class Path:
    """A direction of traffic between host indices, counted from 0.

    `Path(i, None)` is all that host i sends, `Path(None, j)` all that host j receives, and
    `Path(i, j)` what i sends to j. A packet passes all three in turn, and their faults add up.
    Raises ValueError.
    """

    src: int | None
    dst: int | None

    def __post_init__(self) -> None:
        for name, value in (("src", self.src), ("dst", self.dst)):
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < 0
            ):
                raise ValueError(f"Path.{name} is {value!r}; valid: a host index from 0, or None")
        if self.src is None and self.dst is None:
            raise ValueError("Path names neither a source nor a destination; valid: at least one")
        if self.src == self.dst:
            raise ValueError(f"Path leads from host {self.src} to itself; valid: two hosts")

    def describe(self) -> str:
        """The path in words, hosts by index: "0 -> 2", "out of 0", "into 2"."""
        if self.dst is None:
            return f"out of {self.src}"
        if self.src is None:
            return f"into {self.dst}"
        return f"{self.src} -> {self.dst}"


def partition(groups: Sequence[Collection[int]]) -> dict[Path, Netem]:
    """Rules that cut every link between the groups, both ways. Hosts in no group stay connected.

    Raises ValueError for fewer than two groups, an empty one, or a host named twice.
    """
    if len(groups) < 2:
        raise ValueError(f"a partition of {len(groups)} group(s); valid: two groups or more")
    members = [host for group in groups for host in group]
    if any(len(group) == 0 for group in groups):
        raise ValueError("a partition with an empty group; valid: at least one host in each")
    twice = sorted({host for host in members if members.count(host) > 1})
    if twice:
        raise ValueError(f"host {twice[0]} is named twice in a partition; valid: once")
    return {
        Path(src, dst): CUT
        for here, there in permutations(groups, 2)
        for src in here
        for dst in there
    }
