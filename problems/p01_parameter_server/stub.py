"""A parameter server: some ranks keep the model, the others compute gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI


def serve(
    comm: MPI.Intracomm,
    servers: int,
    shard: np.ndarray,
    apply_update: Callable[[np.ndarray, np.ndarray], None],
    staleness: int | None,
) -> list[int]:
    """Keep one shard of the parameters until no worker is left. Called on ranks 0 to servers-1.

    comm: servers and workers. Ranks 0 to servers-1 serve, all others work.
    shard: float64, this server's part of the parameters, to be updated in place:
        `numpy.array_split(params, servers)[rank]`. It may be empty.
    apply_update(shard, gradient): changes `shard` in place. It may keep a state of its own, it may
        be slow, and it must not be called twice at the same time. `gradient`: float64, as `shard`.
    staleness: when a worker may go on, and what is applied.
        0: synchronous. Once every worker that is left has pushed its gradient of a step, their sum
           is applied, in one call. A worker starts its next step with the result.
        s > 0: stale-synchronous. Every gradient is applied by itself, as it comes. A worker may
           start step t (counted from 0) once all workers that are left have t - s gradients
           applied, and has to wait until then.
        None: asynchronous. Every gradient is applied by itself, and nobody ever waits for a worker.
        In all three, what a worker pulls contains all gradients it has pushed itself, each gradient
        whole or not at all.

    A worker is left until it has done all its steps or its process is gone. Its number of steps may
    differ from others' and may be 0. A worker that is gone was killed (the job runs with ULFM): an
    operation with it raises MPI.Exception. What had come from it completely counts, in synchronous
    mode too; what had not does not. Servers are never killed.

    Returns the ranks in `comm` of the workers that were lost, ascending.
    """
    raise NotImplementedError


def work(
    comm: MPI.Intracomm,
    servers: int,
    size: int,
    grad_fn: Callable[[np.ndarray, int], np.ndarray],
    steps: int,
) -> None:
    """Train for `steps` steps: pull the parameters, compute a gradient, push it. Called on all
    ranks from `servers` up. A worker does not know the staleness: the servers hold it back.

    size: number of parameters over all servers. Server r keeps the elements of
        `numpy.array_split(numpy.arange(size), servers)[r]`.
    grad_fn(params, step): float64 of shape (size,) for float64 of the same shape. Call it once for
        each step, with 0 to steps-1 in this order. It may return the same array every time, filled
        anew, so a gradient must have left before the next call.

    Returns when the last gradient has been handed to MPI for good (its send is complete).
    """
    raise NotImplementedError
