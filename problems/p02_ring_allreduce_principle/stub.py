"""The ring all-reduce: its schedule, its price, and a snippet that is widely copied and wrong."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

# (src, dst, chunk, kind): rank `src` sends its copy of chunk `chunk` to rank `dst`, which adds it
# to its own (kind "reduce") or replaces its own by it (kind "copy").
Move = tuple[int, int, int, str]


def ring_schedule(n: int) -> Iterable[Iterable[Move]]:
    """Return the rounds of a ring all-reduce on `n` ranks, each a list of its moves.

    Every rank begins with its own version of chunks 0 to n-1, and ends with the sum over all ranks
    of each. All moves of a round happen at once: what is sent is what `src` held before the round.

    There are 2(n-1) rounds (none for n = 1). The ranks form one ring; in every round every rank
    sends one chunk to its successor, and so each of the n links carries exactly one chunk.

    n: 1 to 1024. For 1,024 there are 2,095,104 moves: a generator of rounds is as welcome as a
        list, and 15 seconds are allowed.

    Raises ValueError if n < 1.
    """
    raise NotImplementedError


def cost(n: int, size: int, alpha: float, beta: float, algorithm: str) -> float:
    """Return the seconds that an all-reduce of `size` bytes takes on `n` ranks.

    A message of m bytes takes alpha + m * beta seconds. A rank sends one message and receives one
    at the same time, never two of a kind. Adding takes no time. A part of the vector is exactly
    size/n (or size/2, ...) bytes: no rounding up.

    n: 1 or more. size: bytes, 0 or more. alpha: seconds a message. beta: seconds a byte.
    algorithm, with p the largest power of two that is at most n:
        "ring": the schedule above.
        "tree": a binomial tree reduces the whole vector to rank 0, the same tree backwards hands
            the result out: whole vectors in every message.
        "recursive doubling": in round k, ranks whose numbers differ in bit k exchange whole
            vectors. If n > p, each of n-p ranks first gives its whole vector to a partner and
            sits out, the p others go on, and the partner hands the result back at the end.
        "rabenseifner": recursive halving (exchange half of the vector, then a quarter of it, ...
            down to size/p, adding), then recursive doubling of the finished parts back up to the
            whole. If n > p, surplus ranks are dealt with as above.

    On one rank nothing is sent: 0.0.

    Raises ValueError if n < 1 or the algorithm is none of these.
    """
    raise NotImplementedError


def crossover(n: int, alpha: float, beta: float) -> float:
    """Return the size in bytes at which "ring" and "recursive doubling" cost the same.

    Below it recursive doubling is cheaper, above it the ring is. Any n, powers of two or not.
    n = 1: 0.0. n = 2: `math.inf`, because recursive doubling sends as many bytes in fewer rounds,
    and the ring never catches up.

    alpha, beta: as for `cost`, both above 0. The result need not be a whole number.

    Raises ValueError if n < 1.
    """
    raise NotImplementedError


def ring_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Leave the sum of all ranks' `tensor` in `tensor`, on every rank of `group`, by a ring.

    Point-to-point calls alone (send, recv, isend, irecv, batch_isend_irecv); collectives are
    refused. Each rank sends at most 2(n-1)/n of the tensor.

    tensor: contiguous, any shape, float32, float64 or int64, any number of elements, 0 included.
        The same shape and dtype on all ranks. Changed in place.
    group: 1 or more ranks. Their numbers in the group (`dist.get_rank(group)`) need not be their
        numbers in the job; `group_dst` and `group_src` take the former.

    This is the snippet to repair. It has been copied from post to post, and three things are wrong.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % n, (rank - 1) % n
    flat = tensor.view(-1)
    length = flat.numel() // n
    chunks = [flat[i * length : (i + 1) * length] for i in range(n)]
    arrived = torch.empty_like(chunks[0])
    for _ in range(n - 1):
        dist.send(chunks[rank], group=group, group_dst=right)
        dist.recv(arrived, group=group, group_src=left)
        chunks[left] += arrived
    for _ in range(n - 1):
        dist.send(chunks[rank], group=group, group_dst=right)
        dist.recv(chunks[left], group=group, group_src=left)
