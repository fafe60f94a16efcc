"""Means with 2 bytes a value, Adam with 1 bit a value.

Three rules carry both:

1. What all must agree on travels: a scale is agreed before values are divided by it, and nobody
   keeps a better copy of what the others got rounded.
2. Where something is lost in rounding to a sign, it is kept, element by element, and added to what
   comes next: by the worker that sends, and by the server that sends on.
3. One message a peer. Bits and scales of all parameters go together, as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

HEADROOM = 2.0**15  # sums of this size are below float16's largest number, 65,504
SMALLEST_EXPONENT = -126  # of float32's normal numbers


class Fp16Allreduce:
    """See stub.py. Each tensor is scaled by a power of two, which costs no digit, so that its sum
    over the ranks fits; how large it may be on any rank is asked of all first."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self._group = process_group
        self._size = dist.get_world_size(process_group)

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            if tensor.dtype != torch.float32:
                raise TypeError(f"tensor {number} is {tensor.dtype}; float32 is right")
        if not tensors:
            return
        scales = self._scales(tensors)
        halves = [
            (tensor.double() * scale).half().reshape(-1)
            for tensor, scale in zip(tensors, scales, strict=True)
        ]
        flat = torch.cat(halves)
        dist.all_reduce(flat, group=self._group)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        for tensor, piece, scale in zip(tensors, pieces, scales, strict=True):
            mean = piece.double() / (scale * self._size)
            tensor.copy_(mean.reshape(tensor.shape))

    def _scales(self, tensors: Sequence[Tensor]) -> list[float]:
        """For each tensor the power of two that brings its largest sum just below HEADROOM.

        Infinities and NaN are left out: they stay what they are under any scale.
        """
        finite = [tensor.abs().nan_to_num(0.0, 0.0, 0.0) for tensor in tensors]
        largest = torch.stack([x.max() if x.numel() else x.sum() for x in finite])
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group)
        return [
            2.0 ** math.floor(math.log2(HEADROOM / (self._size * value))) if value else 1.0
            for value in largest.tolist()
        ]


class OneBitAdam:
    """See stub.py. All parameters live in one flat vector, sorted by server: chunk 0 of every
    parameter, then chunk 1 of every parameter, and so on."""

    def __init__(
        self,
        params: Iterable[Tensor],
        process_group: dist.ProcessGroup,
        lr: float,
        warmup_steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self._params = list(params)
        if not self._params:
            raise ValueError("params is empty; give at least one parameter")
        if not lr > 0:
            raise ValueError(f"lr = {lr}; a rate above 0 is right")
        if warmup_steps < 1:
            raise ValueError(
                f"warmup_steps = {warmup_steps}; 1 or more are right: the variance is "
                "measured in them"
            )
        self._group = process_group
        self._size, self._rank = dist.get_world_size(process_group), dist.get_rank(process_group)
        self._lr, self._warmup_steps, self._betas, self._eps = lr, warmup_steps, betas, eps
        self._steps = 0
        self._lengths = [
            [len(chunk) for chunk in chunks] for chunks in self._by_server(self._params)
        ]
        self._m = torch.zeros(sum(map(sum, self._lengths)), device=self._params[0].device)
        self._v = torch.zeros_like(self._m)
        self._worker_error = torch.zeros_like(self._m)
        self._server_error = self._m.new_zeros(sum(self._lengths[self._rank]))

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        b1, b2 = self._betas
        gradient = self._gather_gradient()
        if self._steps <= self._warmup_steps:
            dist.all_reduce(gradient, group=self._group)
            gradient /= self._size
            self._v.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
            self._m.mul_(b1).add_(gradient, alpha=1 - b1)
        else:
            self._m = self._average_of_signs(self._m.mul(b1).add_(gradient, alpha=1 - b1))
        mean = self._m / (1 - b1**self._steps)
        variance = self._v / (1 - b2 ** min(self._steps, self._warmup_steps))
        update = self._lr * mean / (variance.sqrt() + self._eps)
        self._subtract(torch.where(self._v > 0, update, 0.0))

    def _average_of_signs(self, momentum: Tensor) -> Tensor:
        """The mean over the ranks, compressed on the way to the servers and on the way back."""
        wanted = momentum + self._worker_error
        messages, sent = [], []
        for chunks, lengths in zip(self._cut(wanted), self._lengths, strict=True):
            message = _compress(chunks)
            messages.append(message)
            sent.append(_expand(message, lengths))
        self._worker_error = wanted - torch.cat(sent)

        mine = self._lengths[self._rank]
        received = self._exchange(messages)
        mean = sum(_expand(message, mine) for message in received) / self._size
        wanted = mean + self._server_error
        message = _compress(wanted.split(mine))
        self._server_error = wanted - _expand(message, mine)

        finished = self._collect(message, [len(message) for message in messages])
        return torch.cat(
            [
                _expand(message, lengths)
                for message, lengths in zip(finished, self._lengths, strict=True)
            ]
        )

    def _exchange(self, messages: Sequence[Tensor]) -> Sequence[Tensor]:
        """Send messages[j] to rank j; return what the ranks sent here, all of one length."""
        length = len(messages[self._rank])
        received = messages[0].new_empty(length * self._size)
        sizes = [len(message) for message in messages]
        dist.all_to_all_single(
            received, torch.cat(list(messages)), [length] * self._size, sizes, group=self._group
        )
        return received.split(length)

    def _collect(self, message: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The message of every rank. Lengths may differ by a byte or so: padded to the longest."""
        padded = message.new_zeros(max(lengths))
        padded[: len(message)] = message
        found = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(found, padded, group=self._group)
        return [part[:length] for part, length in zip(found, lengths, strict=True)]

    # Between the parameters and the flat vector

    def _by_server(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """For each server its chunk of every tensor, as views."""
        return [
            list(chunks)
            for chunks in zip(
                *(tensor.detach().view(-1).tensor_split(self._size) for tensor in tensors),
                strict=True,
            )
        ]

    def _cut(self, flat: Tensor) -> Iterator[Sequence[Tensor]]:
        """For each server its chunks of the flat vector."""
        parts = flat.split([sum(lengths) for lengths in self._lengths])
        return (part.split(lengths) for part, lengths in zip(parts, self._lengths, strict=True))

    def _gather_gradient(self) -> Tensor:
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.contiguous() for p in self._params
        ]
        return torch.cat([chunk for chunks in self._by_server(gradients) for chunk in chunks])

    def _subtract(self, update: Tensor) -> None:
        for targets, pieces in zip(self._by_server(self._params), self._cut(update), strict=True):
            for target, piece in zip(targets, pieces, strict=True):
                target -= piece


def _compress(chunks: Sequence[Tensor]) -> Tensor:
    """All chunks as bytes: for each its scale in 4, and then a bit a value, 8 to a byte."""
    parts = []
    for chunk in chunks:
        if not len(chunk):
            continue
        parts += [chunk.abs().mean().reshape(1).view(torch.uint8), _pack(chunk >= 0)]
    return torch.cat(parts) if parts else chunks[0].new_empty(0, dtype=torch.uint8)


def _expand(message: Tensor, lengths: Sequence[int]) -> Tensor:
    """What a message of `_compress` says, chunks one after the other: a scale or its negative."""
    values, start = [], 0
    for length in lengths:
        if not length:
            continue
        bits_start, end = start + 4, start + 4 + math.ceil(length / 8)
        scale = message[start:bits_start].clone().view(torch.float32)
        values.append(torch.where(_unpack(message[bits_start:end], length), scale, -scale))
        start = end
    return torch.cat(values) if values else torch.empty(0, device=message.device)


def _pack(bits: Tensor) -> Tensor:
    """bool -> uint8: element i is bit i % 8 of byte i // 8."""
    padded = torch.zeros(math.ceil(len(bits) / 8) * 8, dtype=torch.uint8, device=bits.device)
    padded[: len(bits)] = bits
    packed = padded[0::8].clone()
    for place in range(1, 8):
        packed |= padded[place::8] << place
    return packed


def _unpack(packed: Tensor, length: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> places & 1).view(-1)[:length].bool()


def convergence_report(
    runs: Mapping[str, Sequence[Mapping[str, float]]], target_auc: float, baseline: str
) -> dict[str, Any]:
    """See stub.py."""
    if baseline not in runs:
        raise ValueError(f"there is no run {baseline!r}; there are {', '.join(sorted(runs))}")
    for name, points in runs.items():
        if not points:
            raise ValueError(f"run {name!r} has no points")
        if any(b["bytes"] < a["bytes"] for a, b in pairwise(points)):
            raise ValueError(f"the bytes of run {name!r} fall; give them since the start")
    reached = {name: _bytes_to_target(points, target_auc) for name, points in runs.items()}
    base = reached[baseline]
    arrived = {name: sent for name, sent in reached.items() if sent is not None}
    return {
        "bytes_to_target": reached,
        "winner": min(sorted(arrived), key=arrived.__getitem__, default=None),
        "saving": {
            name: None if base is None or sent is None else base / sent
            for name, sent in reached.items()
        },
        "final": {name: dict(points[-1]) for name, points in runs.items()},
    }


def _bytes_to_target(points: Sequence[Mapping[str, float]], target_auc: float) -> float | None:
    """Read from the end: the last stretch at or above the target, if there is one."""
    found = None
    for point in reversed(points):
        if not point["auc"] >= target_auc:
            break
        found = point["bytes"]
    return found
