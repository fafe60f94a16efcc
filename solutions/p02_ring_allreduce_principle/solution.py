"""The ring all-reduce: its schedule, its price among others', and the repaired snippet."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

Move = tuple[int, int, int, str]


def ring_schedule(n: int) -> Iterator[list[Move]]:
    """Yield the 2(n-1) rounds; see stub.py.

    In round t rank r sends chunk r - t. One rule serves both halves: chunk c leaves rank c in round
    0, is complete on rank c - 1 after n-1 rounds, and that rank is the one that sends it next.
    """
    if n < 1:
        raise ValueError(f"n = {n}: a ring has 1 rank or more")
    return (
        [(r, (r + 1) % n, (r - t) % n, "reduce" if t < n - 1 else "copy") for r in range(n)]
        for t in range(2 * (n - 1))
    )


def cost(n: int, size: int, alpha: float, beta: float, algorithm: str) -> float:
    """Return the seconds an all-reduce takes; see stub.py for the model.

    Formulas: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, without their term for adding.
    """
    rounds, share = _rounds_and_share(n, algorithm)
    return rounds * alpha + share * size * beta


def crossover(n: int, alpha: float, beta: float) -> float:
    """Return the size at which the ring's extra rounds cost what recursive doubling's bytes do."""
    ring_rounds, ring_share = _rounds_and_share(n, "ring")
    doubling_rounds, doubling_share = _rounds_and_share(n, "recursive doubling")
    if n == 1:
        return 0.0
    if doubling_share <= ring_share:  # n = 2: both send one whole vector, exactly
        return math.inf
    return (ring_rounds - doubling_rounds) * alpha / ((doubling_share - ring_share) * beta)


def _rounds_and_share(n: int, algorithm: str) -> tuple[int, float]:
    """How many messages follow each other, and how many whole vectors they carry together."""
    if n < 1:
        raise ValueError(f"n = {n}: there must be 1 rank or more")
    # In whole numbers: math.log2 of a large n is not exact.
    power = n.bit_length() - 1
    surplus = n > 1 << power
    if algorithm == "ring":
        return 2 * (n - 1), 2 * (n - 1) / n
    if algorithm == "tree":
        rounds = 2 * (power + surplus)
        return rounds, rounds
    # Surplus ranks hand their vector to a partner before, and get the result back after.
    aside = 2 if surplus else 0
    if algorithm == "recursive doubling":
        return power + aside, power + aside
    if algorithm == "rabenseifner":
        p = 1 << power
        return 2 * power + aside, 2 * (p - 1) / p + aside
    valid = '"ring", "tree", "recursive doubling", "rabenseifner"'
    raise ValueError(f"algorithm {algorithm!r}; valid: {valid}")


def ring_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum `tensor` over `group` in place; see stub.py.

    Repaired: nobody sends before it has posted a receive, the chunk moves on in every round, and
    the first numel % n chunks hold the elements that n does not divide.

    Each receive is posted a round ahead. The sender may begin only when it has heard of the
    receive; so the news travels while the round before is still under way, and costs no delay.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    rounds = 2 * (n - 1)
    chunks = torch.tensor_split(tensor.view(-1), n)
    spare = [torch.empty_like(chunks[0]) for _ in range(2)]  # chunks[0] is the longest

    def target(t: int) -> torch.Tensor:
        return chunks[(rank - t - 1) % n]

    def receive(t: int) -> tuple[torch.Tensor, dist.Work | None]:
        # In the second half straight into its place. Nothing there is still to be sent: what comes
        # back finished has passed everybody, the neighbour that waits for our share included.
        arrived = spare[t % 2][: target(t).numel()] if t < n - 1 else target(t)
        # All ranks cut alike, so both ends of a link know which chunks are empty.
        if not arrived.numel():
            return arrived, None
        return arrived, dist.irecv(arrived, group=group, group_src=(rank - 1) % n)

    posted = [receive(0)] if rounds else []
    for t in range(rounds):
        if t + 1 < rounds:
            posted.append(receive(t + 1))
        outgoing, sending = chunks[(rank - t) % n], None
        if outgoing.numel():
            sending = dist.isend(outgoing, group=group, group_dst=(rank + 1) % n)
        arrived, receiving = posted[t]
        if receiving is not None:
            receiving.wait()
        if t < n - 1:
            target(t).add_(arrived)
        if sending is not None:
            sending.wait()
