# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_step_moves_the_parameters_twice"
# says = "against 2|params|"
# ///
"""Sends the whole gradient to every server, which takes its part out of it."""

import contextlib
import time

import numpy as np
from mpi4py import MPI

PULL, PUSH, DONE, PARAMS = 1, 2, 3, 4


def serve(comm, servers, shard, apply_update, staleness):
    left = set(range(servers, comm.Get_size()))
    clock = dict.fromkeys(left, 0)
    size = comm.Get_size() * (shard.size + 1)  # the whole gradient fits in
    buffers = {rank: np.empty(size) for rank in left}
    receives, replies, held = {}, {}, {}
    waiting, lost = set(), []
    begin = first_element(comm, servers, shard)
    while left:
        for rank in sorted(left):
            try:
                tag = received(comm, rank, buffers[rank], receives)
            except MPI.Exception:
                lost.append(rank)
                tag = DONE
            if tag == PUSH and staleness == 0:
                held[rank] = own(buffers[rank], begin, shard)
            elif tag == PUSH:
                apply_update(shard, own(buffers[rank], begin, shard))
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


def first_element(comm, servers, shard):
    """Where this server's shard begins: servers tell each other how long theirs are."""
    rank = comm.Get_rank()
    for other in range(rank + 1, servers):
        comm.Send(np.array([shard.size]), other)
    lengths = [np.empty(1, int) for _ in range(rank)]
    for other, length in enumerate(lengths):
        comm.Recv(length, other)
    return sum(int(length[0]) for length in lengths)


def own(gradient, begin, shard):
    return gradient[begin : begin + shard.size].copy()


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
        for server, part in enumerate(np.array_split(params, servers)):
            comm.Recv(part, server, PARAMS)
        gradient = grad_fn(params, step)
        for server in range(servers):
            comm.Send(gradient, server, PUSH)
    for server in range(servers):
        comm.Send(np.empty(0), server, DONE)
