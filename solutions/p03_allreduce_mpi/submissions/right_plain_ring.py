# /// script
# [tool.distlab]
# outcome = "passed"
# score = 0.97
# ///
"""The textbook ring: one Sendrecv a round, then the sum. The link rests while the ranks add."""

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
    work = recvbuf.reshape(-1)
    n = comm.Get_size()
    if n == 1 or work.size == 0:
        return
    if work.nbytes < 65_536 or not op.Is_commutative():
        doubling(comm, work, op)
    else:
        ring(comm, np.array_split(work, n), op)


def fold(op, left, right):
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
        outgoing = chunks[(rank - t) % n].view(np.uint8)
        comm.Sendrecv(outgoing, right, recvbuf=arrived.view(np.uint8), source=left)
        fold(op, arrived, target)
    for t in range(n - 1):
        outgoing = chunks[(rank + 1 - t) % n].view(np.uint8)
        target = chunks[(rank - t) % n].view(np.uint8)
        comm.Sendrecv(outgoing, right, recvbuf=target, source=left)


def doubling(comm, work, op):
    rank, n = comm.Get_rank(), comm.Get_size()
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    if rank < 2 * extra and rank % 2 == 0:
        comm.Send(work.view(np.uint8), rank + 1)
        comm.Recv(work.view(np.uint8), rank + 1)
        return
    other = np.empty_like(work)
    if rank < 2 * extra:
        comm.Recv(other.view(np.uint8), rank - 1)
        fold(op, other, work)
    me = rank // 2 if rank < 2 * extra else rank - extra
    bit = 1
    while bit < power:
        partner = me ^ bit
        peer = 2 * partner + 1 if partner < extra else partner + extra
        comm.Sendrecv(work.view(np.uint8), peer, recvbuf=other.view(np.uint8), source=peer)
        if partner < me:
            fold(op, other, work)
        else:
            fold(op, work, other)
            work[:] = other
        bit *= 2
    if rank < 2 * extra:
        comm.Send(work.view(np.uint8), rank - 1)
