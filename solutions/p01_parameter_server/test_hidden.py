"""Harder cases of problem 01, not shown to a learner."""

import numpy as np
import pytest
from data import draw_sums, must_have_survived

from cluster.launchers.job import JobOptions


@pytest.mark.points(5)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_workers_that_have_more_to_do_than_others(cluster, rng):
    """Workers have different numbers of steps, one has none, and none waits for those who left."""
    with cluster.job(7, "uneven steps") as job:
        for staleness in (0, 1, 3, None):
            steps = rng.permutation([0, 3, 9, int(rng.integers(12, 20))]).tolist()
            case = draw_sums(rng, int(rng.integers(1, 4)), steps, int(rng.integers(12, 90)))
            run = job.run(case.inputs(), case.params(staleness))
            case.pulled(run)
            case.final(run)


@pytest.mark.points(5)
@pytest.mark.cluster(hosts=6, slots=1)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_two_workers_die_one_after_the_other(cluster, rng):
    """Of four workers with staleness 2 two are killed; the others finish, and both are named.

    The survivors are not held back by the clocks of the dead.
    """
    dead = [int(rank) for rank in rng.choice(np.arange(2, 6), 2, replace=False)]
    case = draw_sums(rng, 2, [150] * 4, 30)
    with cluster.job(6, f"ranks {dead} are killed", JobOptions(fault_tolerant=True)) as job:
        killing = job.killing(dict(zip(dead, (0.2, 0.35), strict=True)))
        params = case.params(2, sleep_s=0.01)
        run = job.run(case.inputs(), params, lost=set(dead), during=killing)
    must_have_survived(case, run, set(dead))
    killing.must_have_fired()
