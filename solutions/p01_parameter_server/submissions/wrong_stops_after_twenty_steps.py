# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_the_rest_finishes_when_a_worker_dies"
# says = "got 20 calls"
# ///
"""A limit from debugging was left in: no worker takes more than twenty steps, and the kill comes
when all are done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

# What a message from a worker is. Pulls and goodbyes are empty; so may a push to an empty shard be.
PULL, PUSH, DONE = 1, 2, 3
PARAMETERS = 4
# How long a server sleeps when no message has come: well under a step, and the processor is free.
IDLE_S = 0.00005


def serve(
    comm: MPI.Intracomm,
    servers: int,
    shard: np.ndarray,
    apply_update: Callable[[np.ndarray, np.ndarray], None],
    staleness: int | None,
) -> list[int]:
    """Keep `shard` up to date until no worker is left; return the lost ones. See stub.py."""
    workers = {rank: _Worker(comm, rank, shard) for rank in range(servers, comm.Get_size())}
    state = _Shard(shard, apply_update, staleness, workers)
    lost = []
    while workers:
        heard = False
        for rank, worker in list(workers.items()):
            try:
                tag = worker.poll()
            except MPI.Exception:
                tag = DONE
                lost.append(rank)
            if tag == PUSH:
                state.push(worker)
            elif tag == PULL:
                worker.waits = True
            elif tag == DONE:
                del workers[rank]
            heard |= tag is not None
        if heard:
            state.catch_up()
            state.answer()
        else:
            time.sleep(IDLE_S)
    return sorted(lost)


class _Worker:
    """One worker, as a server sees it. clock: gradients applied. waits: for parameters.

    The receive is posted for this worker by name and completed by testing. So a worker that stops
    in the middle of a message holds up nobody, and the death of one is an error of its own receive
    only; a receive from anybody would fail for the living as well.
    """

    def __init__(self, comm: MPI.Intracomm, rank: int, shard: np.ndarray) -> None:
        self.comm, self.rank = comm, rank
        self.clock, self.waits = 0, False
        self.gradient = np.empty_like(shard)
        self.reply: tuple[MPI.Request, np.ndarray] | None = None
        self.request: MPI.Request | None = None

    def poll(self) -> int | None:
        """The tag of a message that has come completely, or None. Raises MPI.Exception when the
        worker is gone. A goodbye is the last message: nothing is left posted for a later caller."""
        if self.request is None:
            self.request = self.comm.Irecv(self.gradient, self.rank, MPI.ANY_TAG)
        status = MPI.Status()
        if not self.request.Test(status):
            return None
        self.request = None
        return status.Get_tag()

    def send(self, snapshot: np.ndarray) -> None:
        """Start a reply. The one before has arrived: the worker has asked again since."""
        if self.reply is not None:
            self.reply[0].Wait()
        self.reply = self.comm.Isend(snapshot, self.rank, PARAMETERS), snapshot
        self.waits = False


@dataclass
class _Shard:
    """The parameters, and the rules of the three modes. workers: those that are left."""

    values: np.ndarray
    apply_update: Callable[[np.ndarray, np.ndarray], None]
    staleness: int | None
    workers: dict[int, _Worker]
    held: dict[int, np.ndarray] = field(default_factory=dict)

    def push(self, worker: _Worker) -> None:
        """Apply a gradient, or hold it until all of its step are there."""
        if self.staleness == 0:
            self.held[worker.rank] = worker.gradient.copy()
            return
        self.apply_update(self.values, worker.gradient)
        worker.clock += 1

    def catch_up(self) -> None:
        """In synchronous mode: end the step if everybody who is left has pushed.

        The sum is taken in the order of ranks, so that two runs give the same bits. A lost
        worker's gradient that had come counts; the next step does without.
        """
        if not self.held or any(rank not in self.held for rank in self.workers):
            return
        total = sum(self.held[rank] for rank in sorted(self.held))
        self.apply_update(self.values, total)
        for rank in self.held:
            if rank in self.workers:
                self.workers[rank].clock += 1
        self.held.clear()

    def may_start(self, worker: _Worker) -> bool:
        if worker.rank in self.held:
            return False
        slowest = min(other.clock for other in self.workers.values())
        return self.staleness is None or worker.clock - slowest <= self.staleness

    def answer(self) -> None:
        """Send parameters to all who wait and may go on."""
        ready = [w for w in self.workers.values() if w.waits and self.may_start(w)]
        if not ready:
            return
        snapshot = self.values.copy()  # it leaves later, while the shard changes
        for worker in ready:
            # To a worker that is gone this fails; so does its receive, which is where it is told.
            with contextlib.suppress(MPI.Exception):
                worker.send(snapshot)


def work(
    comm: MPI.Intracomm,
    servers: int,
    size: int,
    grad_fn: Callable[[np.ndarray, int], np.ndarray],
    steps: int,
) -> None:
    """Pull, compute, push, `steps` times. See stub.py."""
    params = np.empty(size)
    parts = np.array_split(params, servers)
    pushes: list[MPI.Request] = []
    for step in range(min(steps, 20)):
        # The push before is still leaving; on each server the pull queues behind it.
        pulls = [comm.Irecv(part, server, PARAMETERS) for server, part in enumerate(parts)]
        pulls += [comm.Isend(np.empty(0), server, PULL) for server in range(servers)]
        MPI.Request.Waitall(pushes + pulls)
        gradient = np.ascontiguousarray(grad_fn(params, step), np.float64)
        shares = np.array_split(gradient, servers)
        pushes = [comm.Isend(share, server, PUSH) for server, share in enumerate(shares)]
    pushes += [comm.Isend(np.empty(0), server, DONE) for server in range(servers)]
    MPI.Request.Waitall(pushes)
