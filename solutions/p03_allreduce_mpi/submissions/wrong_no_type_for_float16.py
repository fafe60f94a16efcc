# /// script
# [tool.distlab]
# outcome = "crashed"
# check = "test_every_type_and_operation"
# says = "float16"
# ///
"""A table of MPI types without float16, which many MPI libraries have no type for."""

import numpy as np
from mpi4py import MPI

TYPES = {"float32": MPI.FLOAT, "float64": MPI.DOUBLE, "int64": MPI.INT64_T}


def allreduce(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    work = recvbuf.reshape(-1)
    if sendbuf is not MPI.IN_PLACE:
        work[:] = sendbuf.reshape(-1)
    n = comm.Get_size()
    if n == 1 or work.size == 0:
        return
    if work.nbytes <= 16_384 or not op.Is_commutative():
        doubling(comm, work, op)
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
    comm.Sendrecv(typed(outgoing), right, recvbuf=typed(incoming), source=left)


def doubling(comm, work, op):
    rank, n = comm.Get_rank(), comm.Get_size()
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    if rank < 2 * extra and rank % 2 == 0:
        comm.Send(typed(work), rank + 1)
        comm.Recv(typed(work), rank + 1)
        return
    other = np.empty_like(work)
    if rank < 2 * extra:
        comm.Recv(typed(other), rank - 1)
        fold(op, other, work)
    me = rank // 2 if rank < 2 * extra else rank - extra
    bit = 1
    while bit < power:
        partner = me ^ bit
        peer = 2 * partner + 1 if partner < extra else partner + extra
        comm.Sendrecv(typed(work), peer, recvbuf=typed(other), source=peer)
        if partner < me:
            fold(op, other, work)
        else:
            fold(op, work, other)
            work[:] = other
        bit *= 2
    if rank < 2 * extra:
        comm.Send(typed(work), rank - 1)


def typed(array):
    return [array, TYPES[array.dtype.name]]
