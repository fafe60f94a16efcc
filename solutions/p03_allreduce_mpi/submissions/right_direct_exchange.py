# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""No ring and no tree: every rank talks to every other one directly.

Short vectors go whole to everybody, one round. Of a long one each rank owns 1/n of every block: it
gets its share from all, folds in rank order, and hands the result to all. Several blocks are under
way at once, so that one block's exchange fills the other's gaps.
"""

import functools

import numpy as np
from mpi4py import MPI

WHOLE_BELOW = 8 * 1024
SHARE = 30 * 1024
IN_FLIGHT = 3


def allreduce(comm, sendbuf, recvbuf, op):
    buffers = (recvbuf,) if sendbuf is MPI.IN_PLACE else (sendbuf, recvbuf)
    if not all(b.flags.c_contiguous for b in buffers):
        raise ValueError("allreduce needs contiguous buffers; copy with np.ascontiguousarray first")
    if sendbuf is not MPI.IN_PLACE:
        if sendbuf.size != recvbuf.size:
            raise ValueError(f"sizes differ: {sendbuf.size} sent, {recvbuf.size} to receive")
        if sendbuf.dtype != recvbuf.dtype:
            raise ValueError(f"dtypes differ: {sendbuf.dtype} sent, {recvbuf.dtype} to receive")
        np.copyto(recvbuf.reshape(-1), sendbuf.reshape(-1))
    vector = recvbuf.reshape(-1)
    if vector.size == 0:
        return
    if vector.nbytes <= WHOLE_BELOW:
        shares, requests = swap(comm, [vector] * comm.Get_size(), 0)
        MPI.Request.Waitall(requests)
        vector[:] = fold(op, shares)
        return
    exchange_blocks(comm, vector, op)


def exchange_blocks(comm, vector, op):
    rank, n = comm.Get_rank(), comm.Get_size()
    count = -(-vector.nbytes // (n * SHARE))
    blocks = [np.array_split(block, n) for block in np.array_split(vector, count)]
    under_way = {}
    last = []
    for step in range(count + IN_FLIGHT):
        if step < count:
            under_way[step] = swap(comm, blocks[step], step)
        ready = step - IN_FLIGHT
        if ready >= 0:
            shares, requests = under_way.pop(ready)
            MPI.Request.Waitall(requests)
            mine = blocks[ready][rank]
            mine[:] = fold(op, shares)
            for peer in peers(comm):
                last.append(comm.Irecv(blocks[ready][peer].view("B"), peer, count + ready))
                last.append(comm.Isend(mine.view("B"), peer, count + ready))
    MPI.Request.Waitall(last)


def peers(comm):
    n = comm.Get_size()
    return [(comm.Get_rank() + shift) % n for shift in range(1, n)]


def swap(comm, outgoing, tag):
    """Start sending outgoing[p] to each p; return what arrives from each rank, and the requests."""
    mine = outgoing[comm.Get_rank()]
    shares = [np.empty_like(mine) for _ in outgoing]
    shares[comm.Get_rank()][:] = mine
    requests = []
    for peer in peers(comm):
        requests.append(comm.Irecv(shares[peer].view("B"), peer, tag))
        requests.append(comm.Isend(outgoing[peer].view("B"), peer, tag))
    return shares, requests


def fold(op, shares):
    known = {"sum": np.add, "prod": np.multiply, "max": np.maximum}
    for name, function in known.items():
        if op == getattr(MPI, name.upper()):
            return functools.reduce(function, shares)
    total = shares.pop()
    while shares:
        op.Reduce_local(shares.pop(), total)
    return total
