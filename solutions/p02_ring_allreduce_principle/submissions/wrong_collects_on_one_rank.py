# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_no_host_sends_more_than_its_share"
# says = "one rank"
# ///
"""Rank 0 adds up what all send it, and sends the sum to all: (n-1) tensors each way."""

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
    if not tensor.numel():
        return
    if rank:
        dist.send(tensor, group=group, group_dst=0)
        dist.recv(tensor, group=group, group_src=0)
        return
    arrived = torch.empty_like(tensor)
    for peer in range(1, n):
        dist.recv(arrived, group=group, group_src=peer)
        tensor += arrived
    for peer in range(1, n):
        dist.send(tensor, group=group, group_dst=peer)
