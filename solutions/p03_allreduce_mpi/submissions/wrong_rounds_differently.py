# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_ranks_agree_to_the_last_bit"
# says = "not associative"
# ///
"""Every rank adds up what it gathered, its own share first: sums that differ in the last bit."""

import numpy as np
from mpi4py import MPI


def allreduce(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    work = recvbuf.reshape(-1)
    if sendbuf is not MPI.IN_PLACE:
        work[:] = sendbuf.reshape(-1)
    n = comm.Get_size()
    if n == 1 or work.size == 0:
        return
    if work.nbytes <= 16_384 or not op.Is_commutative():
        gather_and_fold(comm, work, op)
    else:
        ring(comm, np.array_split(work, n), op)


def check(sendbuf, recvbuf):
    in_place = sendbuf is MPI.IN_PLACE
    if not recvbuf.flags.c_contiguous or not (in_place or sendbuf.flags.c_contiguous):
        raise ValueError("buffers must be contiguous")
    if not in_place and (sendbuf.dtype, sendbuf.size) != (recvbuf.dtype, recvbuf.size):
        raise ValueError("sendbuf and recvbuf must agree in dtype and size")


def fold(op, left, right):
    """right = left op right"""
    for known, ufunc in ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum)):
        if op == known:
            ufunc(left, right, out=right)
            return
    op.Reduce_local(left, right)


def ring(comm, chunks, op):
    rank, n = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    for t in range(n - 1):
        target = chunks[(rank - t - 1) % n]
        arrived = np.empty_like(target)
        shift(comm, chunks[(rank - t) % n], right, arrived, left)
        fold(op, arrived, target)
    for t in range(n - 1):
        shift(comm, chunks[(rank + 1 - t) % n], right, chunks[(rank - t) % n], left)


def shift(comm, outgoing, right, incoming, left):
    comm.Sendrecv(outgoing.view("B"), right, recvbuf=incoming.view("B"), source=left)


def gather_and_fold(comm, work, op):
    rank, n = comm.Get_rank(), comm.Get_size()
    shares = [np.empty_like(work) for _ in range(n)]
    shares[rank][:] = work
    others = [peer for peer in range(n) if peer != rank]
    requests = [comm.Irecv(shares[peer].view("B"), peer) for peer in others]
    requests += [comm.Isend(work.view("B"), peer) for peer in others]
    MPI.Request.Waitall(requests)
    order = [rank, *others] if op.Is_commutative() else list(reversed(range(n)))
    total = shares[order[0]]
    for peer in order[1:]:
        fold(op, shares[peer], total)
    work[:] = total
