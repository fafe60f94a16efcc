# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""The schedule is the program: each rank picks its moves out of it. A thread does the sending.

The ring visits even ranks upwards and odd ranks downwards, so that no link is longer than two.
"""

import math
import threading

import torch
import torch.distributed as dist


def order(n):
    return [*range(0, n, 2), *reversed(range(1, n, 2))]


def ring_schedule(n):
    if n < 1:
        raise ValueError(f"n must be positive, not {n}")
    ring = order(n)
    links = [(ring[i], ring[(i + 1) % n], i) for i in range(n)]
    kinds = ["reduce"] * (n - 1) + ["copy"] * (n - 1)
    return [
        [(src, dst, (place - t) % n, kind) for src, dst, place in links]
        for t, kind in enumerate(kinds)
    ]


def cost(n, size, alpha, beta, algorithm):
    if n < 1:
        raise ValueError(f"n must be positive, not {n}")
    prices = {
        "ring": lambda: (2 * (n - 1), 2 * (n - 1) / n),
        "tree": lambda: (2 * (n - 1).bit_length(),) * 2,
        "recursive doubling": lambda: (levels(n) + extra(n),) * 2,
        "rabenseifner": lambda: (2 * levels(n) + extra(n), 2 - 2 / 2 ** levels(n) + extra(n)),
    }
    if algorithm not in prices:
        raise ValueError(f"{algorithm!r} is not among {list(prices)}")
    messages, vectors = prices[algorithm]()
    return messages * alpha + vectors * size * beta


def levels(n):
    return n.bit_length() - 1


def extra(n):
    return 2 if n & (n - 1) else 0


def crossover(n, alpha, beta):
    if n < 1:
        raise ValueError(f"n must be positive, not {n}")
    if n == 1:
        return 0.0
    at_0 = cost(n, 0, alpha, beta, "ring") - cost(n, 0, alpha, beta, "recursive doubling")
    per_byte = cost(n, 1, 0, beta, "recursive doubling") - cost(n, 1, 0, beta, "ring")
    return math.inf if per_byte == 0 else at_0 / per_byte


def ring_all_reduce(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = torch.tensor_split(tensor.reshape(-1), n)
    for moves in ring_schedule(n):
        _, right, leaving, _ = next(move for move in moves if move[0] == rank)
        left, _, coming, kind = next(move for move in moves if move[1] == rank)
        sender = threading.Thread(target=send, args=(chunks[leaving], right, group))
        sender.start()
        arrived = torch.empty_like(chunks[coming])
        if arrived.numel():
            dist.recv(arrived, group=group, group_src=left)
        sender.join()
        if kind == "reduce":
            arrived += chunks[coming]
        chunks[coming].copy_(arrived)


def send(chunk, right, group):
    if chunk.numel():
        dist.send(chunk, group=group, group_dst=right)
