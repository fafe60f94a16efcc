# /// script
# [tool.distlab]
# outcome = "refused"
# check = "test_sum_on_four_ranks"
# says = "ctypes"
# ///
"""Calls the C library underneath mpi4py."""

import ctypes

from mpi4py import MPI


def allreduce(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    library = ctypes.CDLL("libmpi.so.40")
    source = recvbuf.copy() if sendbuf is MPI.IN_PLACE else sendbuf
    kind = MPI.Datatype.fromcode(recvbuf.dtype.char)
    handles = (ctypes.c_void_p(MPI._handleof(item)) for item in (kind, op, comm))
    kind, op, comm = handles
    library.MPI_Allreduce(
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_void_p(recvbuf.ctypes.data),
        ctypes.c_int(recvbuf.size),
        kind,
        op,
        comm,
    )


def check(sendbuf, recvbuf):
    in_place = sendbuf is MPI.IN_PLACE
    if not recvbuf.flags.c_contiguous or not (in_place or sendbuf.flags.c_contiguous):
        raise ValueError("buffers must be contiguous")
    if not in_place and (sendbuf.dtype, sendbuf.size) != (recvbuf.dtype, recvbuf.size):
        raise ValueError("sendbuf and recvbuf must agree in dtype and size")
