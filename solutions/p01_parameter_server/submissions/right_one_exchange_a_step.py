# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""A push is a request for the next parameters as well, and the last push is the goodbye: half the
messages. Clocks are counts of pushes, kept in an array; persistent requests wait for workers."""

import time

import numpy as np
from mpi4py import MPI

FIRST, NEXT, LAST, NONE = 21, 22, 23, 24


def serve(comm, servers, shard, apply_update, staleness):
    count = comm.Get_size() - servers
    here = np.ones(count, bool)
    clocks = np.zeros(count, int)
    wants = np.zeros(count, bool)
    inbox = np.zeros((count, shard.size))
    full = np.zeros(count, bool)
    outbox = np.zeros((count, shard.size))
    receives = [comm.Recv_init(inbox[w], servers + w, MPI.ANY_TAG) for w in range(count)]
    for receive in receives:
        receive.Start()
    dead = []
    status = MPI.Status()
    while here.any():
        quiet = True
        for w in np.flatnonzero(here & ~full):
            try:
                if not receives[w].Test(status):
                    continue
                tag = status.Get_tag()
            except MPI.Exception:
                dead.append(servers + int(w))
                tag = NONE
            quiet = False
            full[w] = tag in (NEXT, LAST)
            wants[w] = tag in (FIRST, NEXT)
            here[w] = wants[w]
            if wants[w] and not full[w]:
                receives[w].Start()
        # An inbox that is full is taken in before its worker is listened to again.
        ready = full if staleness != 0 or not (here & ~full).any() else np.zeros(count, bool)
        if ready.any():
            shares = inbox[ready]
            for gradient in [shares.sum(axis=0)] if staleness == 0 else shares:
                apply_update(shard, gradient)
            clocks[ready] += 1
            for w in np.flatnonzero(ready & here):
                receives[w].Start()
            full[ready.copy()] = False
        bound = np.inf if staleness is None or not here.any() else clocks[here].min() + staleness
        for w in np.flatnonzero(wants & here & ~full & (clocks <= bound)):
            wants[w] = False
            outbox[w] = shard
            try:
                comm.Isend(outbox[w], servers + int(w))
            except MPI.Exception:
                continue
        if quiet:
            time.sleep(0.0001)
    return sorted(dead)


def work(comm, servers, size, grad_fn, steps):
    params = np.zeros(size)
    parts = np.array_split(params, servers)
    if steps == 0:
        for server in range(servers):
            comm.Send(np.empty(0), server, NONE)
        return
    for server in range(servers):
        comm.Send(np.empty(0), server, FIRST)
    for step in range(steps):
        for server in range(servers):
            comm.Recv(parts[server], server)
        shares = np.array_split(grad_fn(params, step), servers)
        tag = NEXT if step < steps - 1 else LAST
        for server in range(servers):
            comm.Send(shares[server], server, tag)
