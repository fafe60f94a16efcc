# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""A ring the other way round, costs by playing the messages, the crossover by bisection.

No formula anywhere: each algorithm is a list of steps, a step being (messages at once, bytes each)
on the longest path.
"""

import math

import torch
import torch.distributed as dist


def ring_schedule(n):
    if n < 1:
        raise ValueError("a ring has at least one rank")
    for t in range(n - 1):
        yield [(r, (r or n) - 1, (r + t) % n, "reduce") for r in range(n)]
    for t in range(n - 1):
        yield [(r, (r or n) - 1, (r - 1 + t) % n, "copy") for r in range(n)]


def steps_of(n, size, algorithm):
    """Bytes of the messages that follow each other on the longest path."""
    if algorithm == "ring":
        return [size / n] * (2 * n - 2)
    ranks = 1
    doubling = []
    while 2 * ranks <= n:
        doubling.append(ranks)
        ranks *= 2
    aside = [size] if ranks < n else []
    if algorithm == "tree":
        return ([size] * len(doubling) + aside) * 2
    if algorithm == "recursive doubling":
        return aside + [size] * len(doubling) + aside
    if algorithm == "rabenseifner":
        parts = [size * gap / ranks for gap in doubling]
        return aside + parts[::-1] + parts + aside
    raise ValueError(f"unknown algorithm {algorithm}")


def cost(n, size, alpha, beta, algorithm):
    if n < 1:
        raise ValueError("there is at least one rank")
    return math.fsum(alpha + carried * beta for carried in steps_of(n, size, algorithm))


def crossover(n, alpha, beta):
    if n < 1:
        raise ValueError("there is at least one rank")
    if n == 1:
        return 0.0

    def ring_is_dearer(size):
        return cost(n, size, alpha, beta, "ring") > cost(n, size, alpha, beta, "recursive doubling")

    high = alpha / beta
    while ring_is_dearer(high):
        high *= 2
        if high > 1e6 * n * alpha / beta:
            return math.inf
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if ring_is_dearer(middle) else (low, middle)
    return high


def ring_all_reduce(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    flat = tensor.view(-1)
    if n == 1 or not len(flat):
        return
    # Padded, so that all chunks are alike.
    length = -(-len(flat) // n)
    padded = torch.zeros(n * length, dtype=flat.dtype, device=flat.device)
    padded[: len(flat)] = flat
    chunks = padded.view(n, length)
    arrived = torch.empty_like(chunks[0])
    towards = dist.get_global_rank(group, (rank - 1) % n)
    source = dist.get_global_rank(group, (rank + 1) % n)
    for t in range(2 * n - 2):
        pair = [
            dist.P2POp(dist.irecv, arrived, source, group),
            dist.P2POp(dist.isend, chunks[(rank + t) % n], towards, group),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        target = chunks[(rank + t + 1) % n]
        target.copy_(arrived + target if t < n - 1 else arrived)
    flat.copy_(padded[: len(flat)])
