"""Runs on every rank: hands one case to the learner's allreduce and its result back."""

import time

import numpy as np
from mpi4py import MPI

PRIME = 65_521
SLOW_S_PER_BYTE = 0.35 / (6 << 20)


def compose(left, right, _datatype):
    """right = left after right, for affine maps x -> a x + b mod PRIME packed as a * 2^16 + b.

    Associative, not commutative: it shows whether ranks are combined in order.
    """
    first = np.frombuffer(left, np.int64)
    second = np.frombuffer(right, np.int64)
    a1, b1, a2, b2 = first >> 16, first & 0xFFFF, second >> 16, second & 0xFFFF
    second[:] = (a1 * a2 % PRIME << 16) + (a1 * b2 + b1) % PRIME


def slow_sum(left, right, _datatype):
    """right += left, at the pace of a processor that has much else to do."""
    total = np.frombuffer(right, np.int64)
    total += np.frombuffer(left, np.int64)
    time.sleep(len(left) * SLOW_S_PER_BYTE)


OPERATIONS = {"SUM": MPI.SUM, "MAX": MPI.MAX, "PROD": MPI.PROD}


def run(solution, comm, case):
    name = case.params.get("op", "SUM")
    if name == "slow SUM":
        op = MPI.Op.Create(slow_sum, commute=True)
    else:
        op = OPERATIONS.get(name) or MPI.Op.Create(compose, commute=False)
    mode = case.params.get("mode", "plain")
    if mode.startswith("bad"):
        _call_with_bad_buffers(solution, comm, case, op, mode)
        return
    sendbuf = case.inputs["sendbuf"]
    recvbuf = case.output("recvbuf", sendbuf.shape, sendbuf.dtype)
    if mode == "in place":
        recvbuf[...] = sendbuf
        solution.allreduce(comm, MPI.IN_PLACE, recvbuf, op)
    else:
        solution.allreduce(comm, sendbuf, recvbuf, op)
    if mode == "keep input":
        case.save("sendbuf", sendbuf)


def _call_with_bad_buffers(solution, comm, case, op, mode):
    sendbuf = np.ones(64, np.float32)
    recvbuf = np.zeros(64, np.float32)
    if mode == "bad: sendbuf has gaps":
        sendbuf = np.ones(128, np.float32)[::2]
    elif mode == "bad: recvbuf has gaps":
        recvbuf = np.zeros(128, np.float32)[::2]
    elif mode == "bad: sizes differ":
        recvbuf = np.zeros(63, np.float32)
    elif mode == "bad: types differ":
        recvbuf = np.zeros(64, np.float64)
    try:
        solution.allreduce(comm, sendbuf, recvbuf, op)
        raised = ("nothing", "")
    except Exception as error:
        raised = (type(error).__name__, str(error)[:200])
    case.save("raised", np.array(raised, dtype="U200"))
