# /// script
# [tool.distlab]
# outcome = "passed"
# check = "test_every_type_and_operation"
# ///
"""The name is an object with __call__, made by a decorator and a class."""

from functools import wraps

import numpy as np
from mpi4py import MPI


def check(sendbuf, recvbuf):
    buffers = [recvbuf] if sendbuf is MPI.IN_PLACE else [sendbuf, recvbuf]
    if not all(buffer.flags.c_contiguous for buffer in buffers):
        raise ValueError("sendbuf and recvbuf must be contiguous")
    if len({(buffer.dtype, buffer.size) for buffer in buffers}) > 1:
        raise ValueError("sendbuf and recvbuf must agree in dtype and size")


def fold(op, left, right):
    for known, ufunc in ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum)):
        if op == known:
            ufunc(left, right, out=right)
            return
    op.Reduce_local(left, right)


def everyone(comm, own):
    """The vectors of all ranks, in rank order."""
    rank, n = comm.Get_rank(), comm.Get_size()
    vectors = [own.copy() if r == rank else np.empty_like(own) for r in range(n)]
    peers = [(rank + step) % n for step in range(1, n)]
    requests = [comm.Irecv(vectors[peer].view(np.uint8), peer) for peer in peers]
    requests += [comm.Isend(vectors[rank].view(np.uint8), peer) for peer in peers]
    MPI.Request.Waitall(requests)
    return vectors


def work(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    source = recvbuf if sendbuf is MPI.IN_PLACE else sendbuf
    vectors = everyone(comm, source.reshape(-1))
    for lower in reversed(vectors[:-1]):
        fold(op, lower, vectors[-1])
    recvbuf.reshape(-1)[:] = vectors[-1]


class AllReduce:
    calls = 0

    def __call__(self, comm, sendbuf, recvbuf, op):
        self.calls += 1
        work(comm, sendbuf, recvbuf, op)


@wraps(work)
def wrapped(*args, **kwargs):
    return AllReduce()(*args, **kwargs)


allreduce = AllReduce()
