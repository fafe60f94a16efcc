# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_partition_that_heals_changes_nothing"
# says = "strategy"
# ///
"""Takes 0.3 s without a sum for the end of the others, and computes alone from then on."""

import time

import torch
import torch.distributed as dist
from model import DoesNotFit, Plan
from torch.nn.functional import linear

PATIENCE_S = 0.3
lost = []  # who has been waited for in vain


def choose_strategy(layer, cluster):
    plans = [plan(strategy, layer, cluster) for strategy in ("data", "column", "row")]
    fitting = [p for p in plans if p.memory_bytes <= cluster.memory_bytes]
    if not fitting:
        raise DoesNotFit({p.strategy: p.memory_bytes for p in plans}, cluster.memory_bytes)
    return min(fitting, key=lambda p: p.seconds)


def plan(strategy, layer, cluster):
    n, size = cluster.ranks, layer.dtype_bytes
    w, b = layer.out_features * layer.in_features, layer.out_features * layer.bias
    x, y = layer.batch * layer.in_features, layer.batch * layer.out_features
    rows, ins = -(-layer.batch // n), -(-layer.in_features // n)
    outs = -(-layer.out_features // n)
    gathered = y if layer.whole_output and strategy != "row" else 0
    if strategy == "data":
        reduced = w + b
        held = w + b + rows * layer.in_features + (gathered or rows * layer.out_features)
    elif strategy == "column":
        reduced = x
        held = outs * (layer.in_features + layer.bias) + x + (gathered or layer.batch * outs)
    else:
        reduced = y
        held = ins * (layer.out_features + layer.batch) + b + y
    rounds = (3 if gathered else 2) * (n - 1)
    sent = (n - 1) / n * (2 * reduced + gathered) * size
    seconds = rounds * 2 * cluster.latency_s + sent / cluster.bytes_per_s
    return Plan(strategy, sent, seconds, 2 * held * size)


class Parallel(torch.nn.Module):
    def __init__(self, layer, weight, bias, process_group):
        super().__init__()
        self.layer, self.group = layer, process_group
        rank, n = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.weight, self.bias = (
            None if t is None else torch.nn.Parameter(t.clone().contiguous())
            for t in self.own(weight, bias, rank, n)
        )


class DataParallelLinear(Parallel):
    def own(self, weight, bias, rank, n):
        return weight, bias

    def forward(self, x):
        y = linear(x, *Enter.apply(self.group, self.weight, self.bias))
        return Gather.apply(self.group, y, 0, self.layer.batch) if self.layer.whole_output else y


class ColumnParallelLinear(Parallel):
    def own(self, weight, bias, rank, n):
        return (t if t is None else torch.tensor_split(t, n)[rank] for t in (weight, bias))

    def forward(self, x):
        y = linear(Enter.apply(self.group, x)[0], self.weight, self.bias)
        whole, size = self.layer.whole_output, self.layer.out_features
        return Gather.apply(self.group, y, 1, size) if whole else y


class RowParallelLinear(Parallel):
    def own(self, weight, bias, rank, n):
        return torch.tensor_split(weight, n, 1)[rank], bias

    def forward(self, x):
        y = Leave.apply(self.group, linear(x, self.weight))
        return y if self.bias is None else y + self.bias


def sum_or_not(tensor, group):
    if lost:
        return tensor
    own = tensor.clone()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    until = time.monotonic() + PATIENCE_S
    while not work.is_completed():
        if time.monotonic() > until:
            lost.append(work)
            return own
        time.sleep(0.001)
    work.wait()
    return tensor


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, *tensors):
        ctx.group = group
        return tuple(None if t is None else t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        there = [g for g in gradients if g is not None]
        message = torch.cat([g.reshape(-1) for g in there])
        message = sum_or_not(message, ctx.group)
        pieces = iter(message.split([g.numel() for g in there]))
        return None, *(None if g is None else next(pieces).view(g.shape) for g in gradients)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, partial):
        return sum_or_not(partial.clone(), group)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, part, dim, size):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        lengths = [len(t) for t in torch.tensor_split(torch.empty(size), n)]
        ctx.dim, ctx.start, ctx.length = dim, sum(lengths[:rank]), lengths[rank]
        shape = list(part.shape)
        shape[dim] = lengths[0]
        mine = part.new_zeros(shape)
        mine.narrow(dim, 0, lengths[rank]).copy_(part)
        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine, group=group)
        return torch.cat([p.narrow(dim, 0, k) for p, k in zip(parts, lengths, strict=True)], dim)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient.narrow(ctx.dim, ctx.start, ctx.length), None, None
