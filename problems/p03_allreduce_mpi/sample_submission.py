"""A sample submission: right for every input, and not yet good. See what the report says of it.

One ring serves vectors of all sizes, and each of its rounds waits for the one before.
"""

import numpy as np
from mpi4py import MPI


def allreduce(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    vector = recvbuf.reshape(-1)
    if sendbuf is not MPI.IN_PLACE:
        vector[:] = sendbuf.reshape(-1)
    if op.Is_commutative():
        ring(comm, np.array_split(vector, comm.Get_size()), op)
    else:
        in_rank_order(comm, vector, op)


def check(sendbuf, recvbuf):
    buffers = [recvbuf] if sendbuf is MPI.IN_PLACE else [sendbuf, recvbuf]
    if not all(buffer.flags.c_contiguous for buffer in buffers):
        raise ValueError("sendbuf and recvbuf must be contiguous")
    if len({(buffer.dtype, buffer.size) for buffer in buffers}) > 1:
        raise ValueError("sendbuf and recvbuf must agree in dtype and size")


def ring(comm, chunks, op):
    """In round t send chunk rank - t to the right. In the first half what arrives is added to the
    own chunk; in the second half it is finished, and replaces it."""
    rank, n = comm.Get_rank(), comm.Get_size()
    for t in range(2 * n - 2):
        outgoing, target = chunks[(rank - t) % n], chunks[(rank - t - 1) % n]
        arrived = exchange(comm, outgoing, target)
        if t < n - 1:
            fold(op, arrived, target)
        else:
            target[:] = arrived


def in_rank_order(comm, vector, op):
    """Pass whole vectors round the ring, then combine them, lowest rank first."""
    rank, n = comm.Get_rank(), comm.Get_size()
    vectors = {rank: vector.copy()}
    for t in range(n - 1):
        vectors[(rank - t - 1) % n] = exchange(comm, vectors[(rank - t) % n], vector)
    vector[:] = vectors[n - 1]
    for lower in reversed(range(n - 1)):
        fold(op, vectors[lower], vector)


def exchange(comm, outgoing, like):
    """Send to the right neighbour, and return what comes from the left: an array like `like`."""
    rank, n = comm.Get_rank(), comm.Get_size()
    arrived = np.empty_like(like)
    # Bytes, since MPI has no type for float16.
    comm.Sendrecv(
        outgoing.view(np.uint8),
        (rank + 1) % n,
        recvbuf=arrived.view(np.uint8),
        source=(rank - 1) % n,
    )
    return arrived


def fold(op, left, right):
    """right = left op right."""
    for known, ufunc in ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum)):
        if op == known:
            ufunc(left, right, out=right)
            return
    op.Reduce_local(left, right)
