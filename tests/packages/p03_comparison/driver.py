"""Runs one all-reduce by the means that the case names: the reference, Open MPI, or Gloo."""

import numpy as np


def run(solution, group, case):
    sendbuf = case.inputs["sendbuf"]
    recvbuf = case.output("recvbuf", sendbuf.shape, sendbuf.dtype)
    if case.params["by"] == "gloo":
        import torch
        import torch.distributed as dist

        recvbuf[:] = sendbuf
        dist.all_reduce(torch.from_numpy(recvbuf))
        return
    from mpi4py import MPI

    if case.params["by"] == "Open MPI":
        MPI.Intracomm.Allreduce(group, np.ascontiguousarray(sendbuf), recvbuf, MPI.SUM)
    else:
        solution.allreduce(group, sendbuf, recvbuf, MPI.SUM)
