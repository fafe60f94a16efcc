# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_large_messages_use_the_bandwidth"
# says = "most bytes"
# ///
"""Reduce to rank 0, then broadcast: the root sends and receives n-1 whole vectors."""

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
    if comm.Get_rank():
        comm.Send(work.view("B"), 0)
        comm.Recv(work.view("B"), 0)
        return
    shares = [work.copy(), *(np.empty_like(work) for _ in range(1, n))]
    MPI.Request.Waitall([comm.Irecv(shares[peer].view("B"), peer) for peer in range(1, n)])
    for peer in reversed(range(n - 1)):
        fold(op, shares[peer], shares[n - 1])
    work[:] = shares[n - 1]
    MPI.Request.Waitall([comm.Isend(work.view("B"), peer) for peer in range(1, n)])


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
