# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""Chunks in segments, all receives of a half posted at once: no round waits for the one before."""

import math

import torch
import torch.distributed as dist


def ring_schedule(n):
    if n < 1:
        raise ValueError(f"n = {n}: at least 1")
    rounds = []
    for t in range(n - 1):
        rounds.append([(r, (r + 1) % n, (r - t) % n, "reduce") for r in range(n)])
    for t in range(n - 1):
        rounds.append([(r, (r + 1) % n, (r + 1 - t) % n, "copy") for r in range(n)])
    return rounds


def cost(n, size, alpha, beta, algorithm):
    if n < 1:
        raise ValueError(f"n = {n}: at least 1")
    steps = math.floor(math.log2(n))
    p = 2**steps
    whole = alpha + size * beta
    aside = 2 * whole if n > p else 0.0
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + size / n * beta)
    if algorithm == "tree":
        return 2 * math.ceil(math.log2(n)) * whole
    if algorithm == "recursive doubling":
        return steps * whole + aside
    if algorithm == "rabenseifner":
        return 2 * steps * alpha + 2 * (p - 1) / p * size * beta + aside
    raise ValueError(f"no algorithm {algorithm!r}")


def crossover(n, alpha, beta):
    if n < 1:
        raise ValueError(f"n = {n}: at least 1")
    if n <= 2:
        return (0.0, math.inf)[n - 1]
    steps = math.floor(math.log2(n))
    steps += 2 if n > 2**steps else 0
    return (2 * (n - 1) - steps) * alpha / ((steps - 2 * (n - 1) / n) * beta)


SEGMENT = 1 << 17


def ring_all_reduce(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    if n == 1 or flat.numel() == 0:
        return
    count = max(1, flat.nbytes // n // SEGMENT)
    chunks = [torch.tensor_split(chunk, count) for chunk in torch.tensor_split(flat, n)]
    sends = []

    def forward(segment):
        if segment.numel():
            sends.append(dist.isend(segment, group=group, group_dst=(rank + 1) % n))

    def expect(segment):
        if segment.numel():
            return dist.irecv(segment, group=group, group_src=(rank - 1) % n)
        return None

    half = [(t, part) for t in range(n - 1) for part in range(count)]
    targets = [chunks[(rank - t - 1) % n][part] for t, part in half]
    landing = [torch.empty_like(target) for target in targets]
    posted = [expect(segment) for segment in landing]
    for segment in chunks[rank]:
        forward(segment)
    for work, arrived, target in zip(posted, landing, targets, strict=True):
        if work is not None:
            work.wait()
        target += arrived
        # What has just been added is what the right neighbour needs next; the last is finished.
        forward(target)
    # What comes back finished has passed everybody, so nobody still reads the old value.
    targets = [chunks[(rank - t) % n][part] for t, part in half]
    posted = [expect(segment) for segment in targets]
    for (t, _), work, target in zip(half, posted, targets, strict=True):
        if work is not None:
            work.wait()
        if t < n - 2:
            forward(target)
    for work in sends:
        work.wait()
