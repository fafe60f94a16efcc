"""All-reduce from point-to-point messages."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI


def allreduce(
    comm: MPI.Intracomm, sendbuf: np.ndarray | MPI.InPlaceType, recvbuf: np.ndarray, op: MPI.Op
) -> None:
    """Leave x0 op x1 op ... op x(n-1) in `recvbuf` on every rank, x_r being rank r's input.

    All n ranks of `comm` call this together, with the same length, dtype and operation.

    comm: 1 to 12 ranks. Use its point-to-point calls alone: Send, Recv, Sendrecv, Isend, Irecv,
        Ssend, Issend, Probe and their requests' Wait, Test, Waitall, Waitany. Anything collective
        (Allreduce, Bcast, Barrier, Gather, windows, ...) is refused, on any communicator.
    sendbuf: this rank's input, a C-contiguous array of any shape: float16, float32, float64 or
        int64, 0 to 2^22 elements or so (16 MiB). Do not change it. Or MPI.IN_PLACE: then the input
        is what `recvbuf` holds.
    recvbuf: C-contiguous array of the same dtype and number of elements; gets the result. It does
        not overlap `sendbuf`.
    op: MPI.SUM, MPI.PROD, MPI.MAX, or an operation made by MPI.Op.Create. It works element by
        element and is associative. When `op.Is_commutative()` is false, operands must stay in
        rank order; where the brackets go is up to you. `op.Reduce_local(a, b)` computes
        b = a op b; numpy's functions do for the three named ones.

    The result has the same bits on all ranks.

    Raises ValueError, before any message is sent, when a buffer is not C-contiguous or when
    `sendbuf` and `recvbuf` differ in dtype or number of elements.
    """
    raise NotImplementedError
