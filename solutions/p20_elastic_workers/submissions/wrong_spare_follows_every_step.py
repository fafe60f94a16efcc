# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_spare_costs_nothing_before_it_joins"
# says = "received by the spare"
# ///
"""Spares take part in every step and add nothing: no state need be sent, and all steps are paid."""

import numpy as np


def train(comm, work, state, gradient):
    plan, rank, commits = dict(work.plan), comm.Get_rank(), {}
    params, velocity, rate = state.params.copy(), state.velocity.copy(), 0.0
    step = epoch = position = 0
    members = ()
    while epoch < work.epochs:
        members = tuple(sorted(plan.get(step, ()))) or members
        numbers = work.order(epoch)[position : position + work.per_rank * len(members)]
        mine, total = np.zeros_like(params), np.zeros_like(params)
        if rank in members:
            own = np.array_split(numbers, len(members))[members.index(rank)]
            if len(own):
                mine = gradient(params, own)
        comm.Allreduce(mine, total)
        new_rate = work.rate * len(numbers) / work.base_batch
        velocity = work.momentum * (new_rate / rate if rate else 0) * velocity
        velocity += new_rate / len(numbers) * total
        params, rate = params - velocity, new_rate
        if rank in members:
            commits[step] = members
            state.params[:], state.velocity[:] = params, velocity
        step, position = step + 1, position + len(numbers)
        if position == work.samples:
            epoch, position = epoch + 1, 0
    return commits
