"""Training that goes on when members die and takes new ones in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from model import State, Work
from mpi4py import MPI


def train(
    comm: MPI.Intracomm,
    work: Work,
    state: State,
    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> dict[int, tuple[int, ...]]:
    """Train until all epochs are through, whoever dies or joins. Called on every rank of `comm`.

    comm: members and spares, with ULFM: an operation that needs a dead rank raises MPI.Exception.
        Steps may go over groups of your own instead, such as those of torch (the card, API).
    work: what to train and who takes part when (model.py). At step 0 the members are
        `work.plan[0][1]`. At a later (step, ranks) of the plan they become those ranks, before that
        step and after step - 1 was committed. A rank that has died is left out, for good.
        A rank that is no member waits, and neither computes nor sends or receives parameters; it
        returns when training is over.
    state: on every rank the initial weights, zero velocity, step 0. Change it in place, at
        committed steps only. Who joins, or returns, goes on from the members' state, not its own.
        On return it is the state after the last step this rank took part in.
    gradient(params, numbers): sum of the gradients of the samples with these numbers, float64
        (size,). numbers: int64, at least one; a member without samples in a step does not call it.

    A step takes the next B samples of `work.order(state.epoch)`: `work.per_rank` for each member,
    fewer at the end of an epoch. `numpy.array_split` shares them out to the members by rising rank.
    With g the mean of the B gradients, and `rate` that of the step before (in the first step the
    velocity is 0, and there is nothing to correct):

        new_rate = work.rate * B / work.base_batch
        velocity = work.momentum * (new_rate / rate) * velocity + new_rate * g
        params   = params - velocity

    A step is committed when all members that are left agree that it is done, and then on all of
    them. If a member dies before, nothing of the step counts: those who are left redo from the same
    position, as a step of their own size. Its number stays the same.

    Members may die at any time, one after the other or at once, except while a change of the plan
    is made. Spares do not die. One member is left at least.

    Returns, for each committed step in which this rank took part, its members in rising order.
    """
    raise NotImplementedError
