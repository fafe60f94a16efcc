# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""No autograd.Function: hooks sum gradients, and a part is put among detached others."""

import torch
import torch.distributed as dist
from model import DoesNotFit, Plan
from torch.nn.functional import linear


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


class Linear(torch.nn.Module):
    """One layer in one of three ways; the sums of backward hang on hooks of tensors."""

    cut_weight_along = None

    def __init__(self, layer, weight, bias, process_group):
        super().__init__()
        self.layer, self.group = layer, process_group
        self.rank, self.n = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.cut_weight_along is not None:
            weight = torch.tensor_split(weight, self.n, self.cut_weight_along)[self.rank]
        if self.cut_weight_along == 0 and bias is not None:
            bias = torch.tensor_split(bias, self.n)[self.rank]
        self.weight = torch.nn.Parameter(weight.contiguous().clone())
        self.bias = torch.nn.Parameter(bias.clone()) if bias is not None else None

    def summed(self, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=self.group)
        return gradient

    def entering(self, tensor):
        tensor = tensor.view_as(tensor)
        if tensor.requires_grad:
            tensor.register_hook(self.summed)
        return tensor

    def gathered(self, part, dim, size):
        """Parts in one vector; autograd sees a copy of this rank's part into the whole."""
        lengths = [size // self.n + (r < size % self.n) for r in range(self.n)]
        other = part.shape[1 - dim]
        mine = part.new_zeros(lengths[0] * other)
        mine[: part.numel()] = part.detach().reshape(-1)
        everything = mine.new_empty(self.n * len(mine))
        dist.all_gather_into_tensor(everything, mine, group=self.group)
        pieces = [
            flat[: length * other].view((length, other) if dim == 0 else (other, length))
            for flat, length in zip(everything.split(len(mine)), lengths, strict=True)
        ]
        pieces[self.rank] = part
        return torch.cat(pieces, dim)


class DataParallelLinear(Linear):
    def forward(self, x):
        flat = self.weight.view(-1)
        if self.bias is not None:
            flat = torch.cat([flat, self.bias])
        flat = self.entering(flat)
        weight = flat[: self.weight.numel()].view(self.weight.shape)
        bias = None if self.bias is None else flat[self.weight.numel() :]
        y = linear(x, weight, bias)
        return self.gathered(y, 0, self.layer.batch) if self.layer.whole_output else y


class ColumnParallelLinear(Linear):
    cut_weight_along = 0

    def forward(self, x):
        y = linear(self.entering(x), self.weight, self.bias)
        return self.gathered(y, 1, self.layer.out_features) if self.layer.whole_output else y


class RowParallelLinear(Linear):
    cut_weight_along = 1

    def forward(self, x):
        partial = linear(x, self.weight)
        others = partial.detach().clone()
        dist.all_reduce(others, group=self.group)
        y = partial + (others - partial.detach())  # the value of the sum, the gradient of the part
        return y if self.bias is None else y + self.bias
