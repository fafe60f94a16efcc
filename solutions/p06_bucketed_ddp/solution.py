"""Data-parallel training with bucketed gradient averaging that runs during backward.

Three rules carry the whole:

1. Every rank issues the same reductions in the same order. Buckets are laid out once, from the
   model, and bucket i goes out only after bucket i-1, whichever gradients came first.
2. What follows backward is done by backward itself: the engine calls `_finish` when its last hook
   has run, and that is also when it is known what was not used.
3. A rank without data does as the others do, with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter

MIB = 1 << 20


class BucketedDDP(torch.nn.Module):
    """Wraps a module so that n ranks train one model; see stub.py."""

    def __init__(
        self,
        module: torch.nn.Module,
        process_group: dist.ProcessGroup,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        if not bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb = {bucket_cap_mb}; it is a size in MiB, above 0")
        self.module = module
        self._group = process_group
        self._rank, self._size = dist.get_rank(process_group), dist.get_world_size(process_group)
        self._finds_unused = find_unused_parameters
        self._syncs = True  # False within no_sync()
        self._joins = False  # True within join()
        self._training = list(range(self._size))  # ranks of the group that still have batches
        cap_bytes = int(bucket_cap_mb * MIB)
        _broadcast([*module.parameters(), *module.buffers()], 0, process_group, cap_bytes)
        learning = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in learning]
        self._parameters_in_order = [parameter for _, parameter in learning]
        self._buckets = _lay_out(self._parameters_in_order, cap_bytes)
        self._used = [False] * len(learning)  # since the last reduction
        self._launched = 0  # buckets under way; the next to go is the one of this number
        self._callback_is_queued = False
        for bucket in self._buckets:
            for number, parameter in bucket.members:
                hook = partial(self._on_gradient, bucket, number)
                parameter.register_post_accumulate_grad_hook(hook)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._syncs and torch.is_grad_enabled():
            self._reset()
            if self._joins:
                self._announce(trains=True)
            if self.training:
                self._follow_buffers()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @contextmanager
    def join(self) -> Iterator[None]:
        self._joins = True
        try:
            yield
            self._stand_in()
            everything = [*self.module.parameters(), *self.module.buffers()]
            _broadcast(everything, self._training[0], self._group)
        finally:
            self._joins, self._training = False, list(range(self._size))

    # Backward

    def _on_gradient(self, bucket: _Bucket, number: int, _: Tensor) -> None:
        """Called when a parameter's `.grad` is complete, once a backward."""
        self._used[number] = True
        if not self._syncs:
            return
        if not self._callback_is_queued:
            Variable._execution_engine.queue_callback(self._finish)
            self._callback_is_queued = True
        bucket.missing -= 1
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            self._launch_next()

    def _launch_next(self) -> None:
        self._buckets[self._launched].launch(self._group)
        self._launched += 1

    def _finish(self) -> None:
        """The end of backward: send what hooks did not complete, and wait for the means."""
        while self._launched < len(self._buckets):
            self._launch_next()
        used_somewhere = self._used_somewhere() if self._finds_unused else [True] * len(self._used)
        for bucket in self._buckets:
            bucket.take_means(len(self._training), used_somewhere)
        unused = [n for n, used in zip(self._names, self._used, strict=True) if not used]
        self._used = [False] * len(self._used)
        self._reset()
        if unused and not self._finds_unused:
            raise RuntimeError(
                f"backward did not reach {', '.join(unused)} on rank {self._rank}; if that is "
                "meant, pass find_unused_parameters=True"
            )

    def _used_somewhere(self) -> list[bool]:
        device = self._parameters_in_order[0].device
        flags = torch.tensor(self._used, dtype=torch.uint8, device=device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        return [bool(flag) for flag in flags.tolist()]

    def _reset(self) -> None:
        """Ready for a backward, also after one that an error cut short."""
        self._launched, self._callback_is_queued = 0, False
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)

    # Ranks without data

    def _announce(self, trains: bool) -> bool:
        """Agree on who goes on; return whether anybody does. Remembers the last who did."""
        device = next(self.module.parameters()).device
        goes_on = torch.zeros(self._size, dtype=torch.uint8, device=device)
        goes_on[self._rank] = trains
        dist.all_reduce(goes_on, group=self._group)
        ranks = [rank for rank, yes in enumerate(goes_on.tolist()) if yes]
        if ranks:
            self._training = ranks
        return bool(ranks)

    def _stand_in(self) -> None:
        """Do what the ranks that still train do, in the same order, and contribute nothing."""
        self._used = [False] * len(self._used)
        while self._announce(trains=False):
            if self.training:
                self._follow_buffers()
            for bucket in self._buckets:
                bucket.launch(self._group, zeros=True)
            if self._finds_unused:
                self._used_somewhere()
            for bucket in self._buckets:
                bucket.drop()

    def _follow_buffers(self) -> None:
        _broadcast(list(self.module.buffers()), self._training[0], self._group)


class _Bucket:
    """Parameters whose gradients travel as one vector. members: (number, parameter)."""

    def __init__(self, members: Sequence[tuple[int, Parameter]]) -> None:
        self.members = members
        self.missing = len(members)
        first = members[0][1]
        length = sum(parameter.numel() for _, parameter in members)
        self._flat = torch.zeros(length, dtype=first.dtype, device=first.device)
        self._pieces = self._flat.split([parameter.numel() for _, parameter in members])
        self._work: dist.Work | None = None

    def launch(self, group: dist.ProcessGroup, zeros: bool = False) -> None:
        for (_, parameter), piece in zip(self.members, self._pieces, strict=True):
            if zeros or parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad.reshape(-1))
        self._work = dist.all_reduce(self._flat, group=group, async_op=True)

    def take_means(self, count: int, used_somewhere: Sequence[bool]) -> None:
        """Wait, and leave sum / count in `.grad` of every parameter that somebody used."""
        self.drop()
        self._flat /= count
        for (number, parameter), piece in zip(self.members, self._pieces, strict=True):
            if not used_somewhere[number]:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(piece.view_as(parameter))

    def drop(self) -> None:
        """Wait for the reduction."""
        assert self._work is not None
        self._work.wait()
        self._work = None


def _lay_out(parameters: Sequence[Parameter], cap_bytes: int) -> list[_Bucket]:
    """Buckets in the order in which backward completes them, if it runs as forward did."""
    numbered = [(number, parameter) for number, parameter in enumerate(parameters)]
    return [_Bucket(run) for run in _runs(reversed(numbered), cap_bytes)]


def _runs(
    numbered: Iterable[tuple[int, Tensor]], cap_bytes: int
) -> Iterator[list[tuple[int, Tensor]]]:
    """Neighbours of one dtype, up to `cap_bytes` together, or a single larger one."""
    run: list[tuple[int, Tensor]] = []
    filled = 0
    for number, tensor in numbered:
        if run and (filled + tensor.nbytes > cap_bytes or tensor.dtype != run[0][1].dtype):
            yield run
            run, filled = [], 0
        run.append((number, tensor))
        filled += tensor.nbytes
    if run:
        yield run


@torch.no_grad()
def _broadcast(
    tensors: Sequence[Tensor], source: int, group: dist.ProcessGroup, cap_bytes: int = 25 * MIB
) -> None:
    """Copy `tensors` from rank `source` of the group: as few messages as dtypes and cap allow."""
    by_dtype = sorted(enumerate(tensors), key=lambda item: str(item[1].dtype))
    for run in _runs(by_dtype, cap_bytes):
        flat = torch.cat([tensor.reshape(-1) for _, tensor in run])
        dist.broadcast(flat, group=group, group_src=source)
        pieces = flat.split([tensor.numel() for _, tensor in run])
        for (_, tensor), piece in zip(run, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))
