# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_large_messages_use_the_bandwidth"
# says = "most bytes"
# ///
"""Every rank sends its whole vector to every other one: right for 8 bytes, wasteful for 16 MiB."""

import numpy as np
from mpi4py import MPI


def allreduce(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    work = recvbuf.reshape(-1)
    if sendbuf is not MPI.IN_PLACE:
        work[:] = sendbuf.reshape(-1)
    rank, n = comm.Get_rank(), comm.Get_size()
    if work.size == 0:
        return
    shares = [np.empty_like(work) for _ in range(n)]
    shares[rank][:] = work
    others = [peer for peer in range(n) if peer != rank]
    requests = [comm.Irecv(shares[peer].view("B"), peer) for peer in others]
    requests += [comm.Isend(work.view("B"), peer) for peer in others]
    MPI.Request.Waitall(requests)
    for peer in reversed(range(n - 1)):
        fold(op, shares[peer], shares[n - 1])
    work[:] = shares[n - 1]


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
