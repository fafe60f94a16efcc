"""The launcher of torch ranks: forked where hosts are sandboxes of ours, started cold elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from cluster.interface import Cluster, Host
from cluster.launchers.cold_start import ColdStarter
from cluster.launchers.job import DEFAULT_OPTIONS, JobOptions
from cluster.launchers.program import Program
from cluster.launchers.torch_ranks import TorchJob, launch
from cluster.launchers.warm_parent import WarmParent

TORCH_MODULES = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.optim",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
)


class TorchLauncher:
    """Starts torch ranks. Its warm parent, where there is one, serves all jobs until `close`."""

    name = "torch"

    def __init__(self, *, can_fork: bool) -> None:
        """can_fork: whether the hosts are emulated ones, which a process can be forked into."""
        self._parent = WarmParent(TORCH_MODULES) if can_fork else None

    def prepare(self) -> None:
        """Begin to import torch in the background."""
        if self._parent is not None:
            self._parent.start()

    def start(
        self,
        cluster: Cluster,
        program: Callable[[Host], Program],
        ranks: int,
        options: JobOptions = DEFAULT_OPTIONS,
    ) -> TorchJob:
        """Start `ranks` ranks; a dead one ends no other, whatever `options` say."""
        return launch(cluster, program, ranks, self._parent or ColdStarter())

    def close(self) -> None:
        if self._parent is not None:
            self._parent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
