# /// script
# [tool.distlab]
# outcome = "refused"
# check = "test_sum_on_four_ranks"
# says = "COMM_WORLD"
# ///
"""Fetches the library's collective by a name put together at run time, on another communicator."""

from mpi4py import MPI


def allreduce(comm, sendbuf, recvbuf, op):
    check(sendbuf, recvbuf)
    collective = getattr(MPI.COMM_WORLD, "All" + "reduce")
    collective(sendbuf, recvbuf, op)


def check(sendbuf, recvbuf):
    in_place = sendbuf is MPI.IN_PLACE
    if not recvbuf.flags.c_contiguous or not (in_place or sendbuf.flags.c_contiguous):
        raise ValueError("buffers must be contiguous")
    if not in_place and (sendbuf.dtype, sendbuf.size) != (recvbuf.dtype, recvbuf.size):
        raise ValueError("sendbuf and recvbuf must agree in dtype and size")
