"""Harder cases of problem 20, not shown to a learner."""

import pytest
from data import draw_bowl, draw_counting, members_of_steps, must_count_once, must_equal_twin

from cluster.launchers.job import JobOptions

SURVIVE = JobOptions(fault_tolerant=True)


@pytest.mark.points(5)
@pytest.mark.needs("test_a_planned_resize_consumes_each_sample_once")
def test_members_leave_and_come_back(cluster, rng):
    """A drawn plan of eight changes, also to all new members at once: who comes back goes on from
    the members' state; who waits for a change that is never reached is released.
    """
    with cluster.job(5, "a drawn plan", SURVIVE) as job:
        for draw in (draw_counting, draw_bowl):
            plan = [(0, (0, 1)), (2, (2, 3, 4)), (4, (0, 1))]
            for step in range(6, 21, 3):
                size = int(rng.integers(1, 6))
                plan.append((step, tuple(sorted(rng.choice(5, size, replace=False).tolist()))))
            plan.append((5000, (0, 1, 2, 3, 4)))
            case = draw(rng, tuple(plan), epochs=4, samples=111)
            run = job.run(case.inputs(5), case.params())
            members = members_of_steps(case, run, range(5))
            if draw is draw_counting:
                must_count_once(case, run, members[-1])
            must_equal_twin(case, run, members, range(5))


@pytest.mark.points(5)
@pytest.mark.cluster(hosts=5, slots=1)
@pytest.mark.needs("test_survivors_go_on_when_a_member_dies")
def test_a_spare_takes_the_place_of_a_dead_member(cluster, rng):
    """A member is killed while spares wait; later the plan names it again, with both spares. They
    join, it is left out, and momentum and rate are right all the way.
    """
    dead = int(rng.integers(3))
    plan = ((0, (0, 1, 2)), (80, (0, 1, 2, 3, 4)))
    case = draw_bowl(rng, plan, epochs=5, samples=200)
    with cluster.job(5, f"rank {dead} is killed", SURVIVE) as job:
        params, killing = case.params(sleep_s=0.01), job.killing({dead: 0.3})
        run = job.run(case.inputs(5), params, lost={dead}, during=killing)
    living = sorted(set(range(5)) - {dead})
    members = members_of_steps(case, run, range(5), {dead})
    must_equal_twin(case, run, members, living)
    killing.must_have_fired()
