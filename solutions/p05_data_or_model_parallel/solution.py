"""One linear layer on n ranks in three ways, and the choice between them.

A linear layer has three matrices, W, x and y. Each strategy leaves one of them whole on every rank
and cuts the other two; the whole one is what its all-reduce carries: the gradient of W (data), the
gradient of x (column), or y itself (row). So two functions and their gradients are all there is:

    enter   forward: nothing       backward: all-reduce     something whole enters parallel work
    leave   forward: all-reduce    backward: nothing        partial sums leave it
    gather  forward: all-gather    backward: take my part   parts become whole
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from model import Cluster, DoesNotFit, Layer, Plan
from torch import nn
from torch.nn.functional import linear

# The plan.


def choose_strategy(layer: Layer, cluster: Cluster) -> Plan:
    """The fastest strategy among those that fit; see stub.py."""
    plans = [_plan(strategy, layer, cluster) for strategy in ("data", "column", "row")]
    fitting = [plan for plan in plans if plan.memory_bytes <= cluster.memory_bytes]
    if not fitting:
        needs = {plan.strategy: plan.memory_bytes for plan in plans}
        raise DoesNotFit(needs, cluster.memory_bytes)
    return min(fitting, key=lambda plan: plan.seconds)


def _plan(strategy: str, layer: Layer, cluster: Cluster) -> Plan:
    n, width, height, batch = cluster.ranks, layer.in_features, layer.out_features, layer.batch
    parameters = height * (width + layer.bias)
    x, y = batch * width, batch * height
    gathered = y if layer.whole_output else 0
    if strategy == "data":
        rows = -(-batch // n)
        reduced = parameters
        held = parameters + rows * width + (gathered or rows * height)
    elif strategy == "column":
        columns = -(-height // n)
        reduced = x
        held = columns * (width + layer.bias) + x + (gathered or batch * columns)
    else:
        columns = -(-width // n)
        reduced, gathered = y, 0
        held = height * (columns + layer.bias) + batch * columns + y
    rounds = (n - 1) * (2 + (gathered > 0))
    sent = (n - 1) / n * (2 * reduced + gathered) * layer.dtype_bytes
    seconds = rounds * 2 * cluster.latency_s + sent / cluster.bytes_per_s
    return Plan(strategy, sent, seconds, 2 * held * layer.dtype_bytes)


# The layers.


class _ParallelLinear(nn.Module):
    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        super().__init__()
        self.layer, self.group = layer, process_group
        self.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())


class DataParallelLinear(_ParallelLinear):
    """Rows of x are cut, W and b are whole."""

    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        super().__init__(layer, weight, bias, process_group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = linear(x, *_Enter.apply(self.group, self.weight, self.bias))
        return _Gather.apply(self.group, y, 0, self.layer.batch) if self.layer.whole_output else y


class ColumnParallelLinear(_ParallelLinear):
    """The out_features are cut. x is whole."""

    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        own = _own(process_group, layer.out_features)
        super().__init__(layer, weight[own], None if bias is None else bias[own], process_group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (x,) = _Enter.apply(self.group, x)
        y = linear(x, self.weight, self.bias)
        whole = self.layer.whole_output
        return _Gather.apply(self.group, y, 1, self.layer.out_features) if whole else y


class RowParallelLinear(_ParallelLinear):
    """The in_features are cut. b and y are whole."""

    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        own = _own(process_group, layer.in_features)
        super().__init__(layer, weight[:, own], bias, process_group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _Leave.apply(self.group, linear(x, self.weight))
        return y if self.bias is None else y + self.bias  # after the sum: once, not n times


# What travels.


class _Enter(torch.autograd.Function):
    """Forward: as it is. Backward: the gradients of all tensors summed over ranks, in one message.

    Each rank sends its contribution to the gradient of something whole, for it has worked on a
    part.
    """

    @staticmethod
    def forward(ctx, group, *tensors):
        ctx.group = group
        return tuple(None if t is None else t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        needed = [i for i, needs in enumerate(ctx.needs_input_grad[1:]) if needs]
        message = torch.cat([gradients[i].reshape(-1) for i in needed])
        dist.all_reduce(message, group=ctx.group)
        pieces = message.split([gradients[i].numel() for i in needed])
        summed: list[torch.Tensor | None] = [None] * len(gradients)
        for i, piece in zip(needed, pieces, strict=True):
            summed[i] = piece.view(gradients[i].shape)
        return None, *summed


class _Leave(torch.autograd.Function):
    """Forward: the sum over ranks. Backward: as it is, since y is whole and so is its gradient."""

    @staticmethod
    def forward(ctx, group, partial):
        whole = partial.contiguous()
        dist.all_reduce(whole, group=group)
        ctx.mark_dirty(partial) if whole is partial else None
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


class _Gather(torch.autograd.Function):
    """Forward: the parts of all ranks side by side along `dim`. Backward: this rank's part.

    Parts differ by one row or column when n does not divide; all travel as the longest.
    """

    @staticmethod
    def forward(ctx, group, part, dim, size):
        n = dist.get_world_size(group)
        ctx.dim, ctx.own = dim, _own(group, size)
        longest = -(-size // n)
        other = part.shape[1 - dim]
        # Along dim 1 the transposes travel: then what arrives lies in one piece, whole.
        mine = part.new_zeros(longest, other)
        mine[: part.shape[dim]] = part if dim == 0 else part.T
        whole = part.new_empty(n * longest, other)
        dist.all_gather_into_tensor(whole, mine, group=group)
        if size % n:
            padded = whole.split(longest)
            whole = torch.cat([p[: _length(size, r, n)] for r, p in enumerate(padded)])
        return whole if dim == 0 else whole.T.contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return (
            None,
            gradient.narrow(ctx.dim, ctx.own.start, ctx.own.stop - ctx.own.start),
            None,
            None,
        )


def _length(size: int, rank: int, n: int) -> int:
    """How many of `size` numbers `rank` has, as torch.tensor_split cuts."""
    return size // n + (rank < size % n)


def _own(group: dist.ProcessGroup, size: int) -> slice:
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    start = rank * (size // n) + min(rank, size % n)
    return slice(start, start + _length(size, rank, n))
