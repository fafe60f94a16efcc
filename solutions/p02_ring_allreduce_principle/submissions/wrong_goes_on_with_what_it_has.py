# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_partition_that_heals_changes_nothing"
# says = "at element"
# ///
"""Takes 0.3 s of silence for a dead neighbour, and returns what it has by then."""

import math
import threading

import torch
import torch.distributed as dist

PATIENCE_S = 0.3


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
    if n == 1:
        return
    chunks = list(torch.tensor_split(tensor.view(-1), n))
    for t in range(n - 1):
        mine = chunks[(rank - t - 1) % n]
        arrived = torch.empty_like(mine)
        if not exchange(chunks[(rank - t) % n], arrived, rank, n, group):
            return
        mine += arrived
    for t in range(n - 1):
        if not exchange(chunks[(rank + 1 - t) % n], chunks[(rank - t) % n], rank, n, group):
            return


def exchange(outgoing, arrived, rank, n, group):
    works = []
    if arrived.numel():
        works.append(dist.irecv(arrived, group=group, group_src=(rank - 1) % n))
    if outgoing.numel():
        works.append(dist.isend(outgoing, group=group, group_dst=(rank + 1) % n))
    return all(came(work) for work in works)


def came(work):
    waiter = threading.Thread(target=work.wait, daemon=True)
    waiter.start()
    waiter.join(PATIENCE_S)
    return not waiter.is_alive()
