# /// script
# [tool.distlab]
# outcome = "partial"
# check = "test_the_links_work_while_a_rank_adds"
# says = "a link idles while a rank adds"
# ///
"""Direct exchange in two rounds: all shares first, then all sums. No link works meanwhile."""

import numpy as np
from mpi4py import MPI


def allreduce(comm, sendbuf, recvbuf, op):
    in_place = sendbuf is MPI.IN_PLACE
    if not recvbuf.flags.c_contiguous or not (in_place or sendbuf.flags.c_contiguous):
        raise ValueError("buffers must be contiguous")
    if not in_place:
        if sendbuf.dtype != recvbuf.dtype or sendbuf.size != recvbuf.size:
            raise ValueError("sendbuf and recvbuf must agree in dtype and size")
        recvbuf.reshape(-1)[:] = sendbuf.reshape(-1)
    rank, n = comm.Get_rank(), comm.Get_size()
    parts = np.array_split(recvbuf.reshape(-1), n)
    shares = [np.empty_like(parts[rank]) for _ in range(n)]
    shares[rank][:] = parts[rank]
    exchange(comm, parts, shares)
    for lower in reversed(shares[:-1]):
        fold(op, lower, shares[-1])
    parts[rank][:] = shares[-1]
    exchange(comm, [parts[rank]] * n, parts)


def exchange(comm, outgoing, incoming):
    """Send outgoing[p] to every other rank p, and receive incoming[p] from it."""
    rank, n = comm.Get_rank(), comm.Get_size()
    peers = [(rank + distance) % n for distance in range(1, n)]
    requests = [comm.Irecv(incoming[peer].view(np.uint8), peer) for peer in peers]
    requests += [comm.Isend(outgoing[peer].view(np.uint8), peer) for peer in peers]
    MPI.Request.Waitall(requests)


def fold(op, left, right):
    for known, ufunc in ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum)):
        if op == known:
            ufunc(left, right, out=right)
            return
    op.Reduce_local(left, right)
