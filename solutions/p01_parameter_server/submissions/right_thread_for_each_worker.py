# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""A thread for each worker on the server, a lock round the shard, and a condition to wait on."""

import threading
import time

import numpy as np
from mpi4py import MPI

ASK, GIVE, LEAVE = 31, 32, 33


class Board:
    """What the threads share."""

    def __init__(self, ranks, shard, apply_update, staleness):
        self.changed = threading.Condition()
        self.shard, self.apply_update, self.staleness = shard, apply_update, staleness
        self.clock = dict.fromkeys(ranks, 0)
        self.step = []
        self.given = set()
        self.lost = []

    def give(self, rank, gradient):
        with self.changed:
            if self.staleness == 0:
                self.step.append(gradient)
                self.given.add(rank)
                self.close()
            else:
                self.apply_update(self.shard, gradient)
                self.clock[rank] += 1
            self.changed.notify_all()

    def leave(self, rank, lost):
        with self.changed:
            del self.clock[rank]
            if lost:
                self.lost.append(rank)
            self.close()
            self.changed.notify_all()

    def close(self):
        if self.step and self.given.issuperset(self.clock):
            self.apply_update(self.shard, np.add.reduce(self.step))
            for rank in self.given & set(self.clock):
                self.clock[rank] += 1
            self.step, self.given = [], set()

    def ask(self, rank):
        with self.changed:
            self.changed.wait_for(lambda: self.may_go(rank))
            return self.shard.copy()

    def may_go(self, rank):
        if rank in self.given:
            return False
        return self.staleness is None or self.clock[rank] - self.staleness <= min(
            self.clock.values()
        )


def attend(comm, rank, board):
    """Serve one worker until it leaves. Waits by testing: a blocking call would keep the others'
    threads out of MPI where it allows only one at a time."""
    buffer = np.empty_like(board.shard)
    try:
        while True:
            status = MPI.Status()
            finish(comm.Irecv(buffer, rank, MPI.ANY_TAG), status)
            if status.Get_tag() == LEAVE:
                break
            if status.Get_tag() == GIVE:
                board.give(rank, buffer.copy())
            else:
                finish(comm.Isend(board.ask(rank), rank), status)
    except MPI.Exception:
        board.leave(rank, lost=True)
    else:
        board.leave(rank, lost=False)


def finish(request, status):
    while not request.Test(status):
        time.sleep(0.0001)


def serve(comm, servers, shard, apply_update, staleness):
    ranks = range(servers, comm.Get_size())
    board = Board(ranks, shard, apply_update, staleness)
    threads = [threading.Thread(target=attend, args=(comm, rank, board)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(board.lost)


def work(comm, servers, size, grad_fn, steps):
    params = np.empty(size)
    everywhere = range(servers)
    for step in range(steps):
        for server in everywhere:
            comm.Send(np.empty(0), server, ASK)
        for server, part in zip(everywhere, np.array_split(params, servers), strict=True):
            comm.Recv(part, server)
        shares = np.array_split(grad_fn(params, step), servers)
        for server in everywhere:
            comm.Send(shares[server], server, GIVE)
    for server in everywhere:
        comm.Send(np.empty(0), server, LEAVE)
