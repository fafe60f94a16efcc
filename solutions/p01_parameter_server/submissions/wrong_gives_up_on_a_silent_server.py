# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_staleness_stays_within_the_bound"
# says = "expected grad_fn to be called"
# ///
"""A worker takes 0.3 s without an answer for the end of the training. It is only held back."""

import contextlib
import time

import numpy as np
from mpi4py import MPI

PULL, PUSH, DONE, PARAMS = 1, 2, 3, 4
PATIENCE_S = 0.3


def serve(comm, servers, shard, apply_update, staleness):
    left = set(range(servers, comm.Get_size()))
    clock = dict.fromkeys(left, 0)
    buffers = {rank: np.empty_like(shard) for rank in left}
    receives, replies, held = {}, {}, {}
    waiting, lost = set(), []
    while left:
        for rank in sorted(left):
            tag = received(comm, rank, buffers[rank], receives)
            if tag == PUSH and staleness == 0:
                held[rank] = buffers[rank].copy()
            elif tag == PUSH:
                apply_update(shard, buffers[rank])
                clock[rank] += 1
            elif tag == PULL:
                waiting.add(rank)
            elif tag == DONE:
                left.remove(rank)
        if held and left <= set(held):
            apply_update(shard, sum(held.values()))
            for rank in held:
                clock[rank] += 1
            held.clear()
        slowest = min((clock[rank] for rank in left), default=0)
        for rank in sorted(waiting & left - set(held)):
            if staleness is None or clock[rank] - slowest <= staleness:
                waiting.remove(rank)
                snapshot = shard.copy()
                with contextlib.suppress(MPI.Exception):
                    replies[rank] = comm.Isend(snapshot, rank, PARAMS), snapshot
        time.sleep(0.00005)
    return sorted(lost)


def received(comm, rank, buffer, receives):
    """The tag of what has come from a worker, or None."""
    if rank not in receives:
        receives[rank] = comm.Irecv(buffer, rank, MPI.ANY_TAG)
    status = MPI.Status()
    if not receives[rank].Test(status):
        return None
    del receives[rank]
    return status.Get_tag()


def work(comm, servers, size, grad_fn, steps):
    params = np.empty(size)
    for step in range(steps):
        for server in range(servers):
            comm.Send(np.empty(0), server, PULL)
        parts = np.array_split(params, servers)
        if not all_came([comm.Irecv(part, s, PARAMS) for s, part in enumerate(parts)]):
            break
        gradient = grad_fn(params, step)
        for server, part in enumerate(np.array_split(gradient, servers)):
            comm.Send(part, server, PUSH)
    for server in range(servers):
        comm.Send(np.empty(0), server, DONE)


def all_came(requests):
    until = time.monotonic() + PATIENCE_S
    while not MPI.Request.Testall(requests):
        if time.monotonic() > until:
            return False
        time.sleep(0.00005)
    return True
