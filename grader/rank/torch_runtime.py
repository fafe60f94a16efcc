"""The job's ranks over torch.distributed: the process group, and one of its first ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from grader.rank.trace import Recorder
from grader.rank.traced_torch import TorchTracer

_POLL_S = 0.001


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Give the group that is made within this name. The one that torch would give contains how many
    groups the rank has, in which ranks that sat a case out differ: they would wait for ever."""
    usual = distributed_c10d._process_group_name
    distributed_c10d._process_group_name = lambda *_, **__: distributed_c10d.GroupName(name)
    try:
        yield
    finally:
        distributed_c10d._process_group_name = usual


@dataclass(frozen=True)
class TorchGroup:
    """What a torch driver is given. process_group: the ranks that take part; the default group,
    so that `dist.all_reduce(x)` does without naming it, when those are all. device: where this
    rank's tensors belong."""

    rank: int
    world_size: int
    process_group: dist.ProcessGroup
    device: torch.device


class TorchRuntime:
    """See grader.rank.runtime.Runtime."""

    def __init__(self, settings: Mapping[str, Any], out: Path, source: str) -> None:
        backend = os.environ["DISTLAB_TORCH_BACKEND"]
        self._device = torch.device("cpu")
        if backend == "nccl":
            if not torch.cuda.is_available():
                raise RuntimeError(
                    "torch sees no GPU on this host, though the inventory names some"
                )
            local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
            self._device = torch.device("cuda", local)
            torch.cuda.set_device(self._device)
        dist.init_process_group(backend)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Over the store, whose network no fault applies to, and never over the learner's groups.
        self._store = distributed_c10d.PrefixStore("distlab", distributed_c10d._get_default_store())
        self._barriers: dict[int, int] = {}
        self._groups: dict[int, TorchGroup] = {}
        recorder = Recorder(out / f"{settings['job']}.trace.r{self.rank}", source)
        self._new_group, self._warm_up = dist.new_group, dist.barrier
        TorchTracer(recorder, settings["refuse"]).install()

    def group(self, size: int) -> TorchGroup:
        """The job's first `size` ranks. Collective over those."""
        if size not in self._groups:
            members = dist.group.WORLD
            if size < self.size:
                with _named(f"distlab {size}"):
                    members = self._new_group(list(range(size)), use_local_synchronization=True)
            assert members is not None
            self._warm_up(members)  # connections are made by the first operation
            self._groups[size] = TorchGroup(self.rank, size, members, self._device)
        return self._groups[size]

    def barrier(self, size: int) -> None:
        self._barriers[size] = self._barriers.get(size, 0) + 1
        key = f"{size} ranks"
        self._store.add(key, 1)
        while self._store.add(key, 0) < size * self._barriers[size]:
            time.sleep(_POLL_S)

    def progress(self) -> None:
        """Gloo and NCCL have threads of their own."""

    def refused_use(self) -> None:
        """What is refused raises where it is called."""
