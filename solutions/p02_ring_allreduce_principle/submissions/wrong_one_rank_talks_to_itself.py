# /// script
# [tool.distlab]
# outcome = "crashed"
# check = "test_every_length_and_rank_count"
# says = "rank"
# ///
"""Takes for granted that there is a neighbour: one rank sends to itself."""

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


def ring_all_reduce(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = list(torch.tensor_split(tensor.view(-1), n))
    arrived = torch.empty_like(chunks[0])
    # The first receive is posted before the loop, so that nobody waits for it.
    ahead = dist.irecv(arrived[: chunks[left].numel()], group=group, group_src=left)
    for t in range(2 * n - 2):
        target, outgoing = chunks[(rank - t - 1) % n], chunks[(rank - t) % n]
        sending = dist.isend(outgoing, group=group, group_dst=right)
        ahead.wait()
        sending.wait()
        if t < n - 1:
            target += arrived[: target.numel()]
        else:
            target.copy_(arrived[: target.numel()])
        if t < 2 * n - 3:
            following = chunks[(rank - t - 2) % n].numel()
            ahead = dist.irecv(arrived[:following], group=group, group_src=left)
