"""What problem 01 asks for, as checks. Each docstring is what you read in the report."""

import numpy as np
import pytest
from data import cuts, draw_sums, gaps, given, must_have_survived
from model import AdaGrad, batch, click_gradient, dependent_gradient, halve

from cluster.launchers.job import JobOptions
from grader.auc import auc
from grader.compare import expect_equal, output
from grader.datasets.clicks import movielens
from grader.ended import Failed

SURVIVE = JobOptions(fault_tolerant=True)


def expected(start, tables):
    """Sequential SGD: in each step the sum of all gradients, applied once. Also what was seen."""
    params, seen = start.copy(), []
    for step in range(len(tables[0])):
        seen.append(params.copy())
        halve(params, sum(dependent_gradient(params, *table[step]) for table in tables))
    return params, seen


def run_synchronous(job, rng, servers, workers, size, steps=8):
    """One synchronous case, held against sequential SGD bit for bit."""
    start = rng.integers(-1000, 1000, size).astype(np.float64)
    tables = [rng.integers(1, 999, (steps, 2, size)).astype(np.float64) for _ in range(workers)]
    ranks = [(start[a:b], np.empty(0)) for a, b in cuts(size, servers)]
    ranks += [(np.empty(0), table) for table in tables]
    inputs = [{"start": shard, "table": table} for shard, table in ranks]
    params = {"servers": servers, "size": size, "staleness": 0, "steps": [steps] * workers}
    run = job.run(inputs, {**params, "gradients": "dependent", "update": "halve"})
    want, seen = expected(start, tables)
    case = f"({servers} servers, {workers} workers, {size} parameters)"
    for rank in range(servers, servers + workers):
        for step, row in enumerate(given(run, rank, steps, size)):
            expect_equal(
                row,
                seen[step],
                where=f"in what rank {rank} got for step {step} {case}",
                cause="gradients averaged, or applied one by one (apply_update is given the sum of "
                "a step's gradients, once), or one push received over another.",
                next_step="do two steps with two workers by hand, and compare after each.",
            )
    for server, (a, b) in enumerate(cuts(size, servers)):
        where = f"in the shard of server {server} {case}"
        expect_equal(output(run.outputs[server], "shard", server), want[a:b], where=where)


@pytest.mark.points(10)
def test_synchronous_mode_is_sequential_sgd(cluster, rng):
    """With staleness 0, one server and one to four workers give the same bits as one process.

    Gradients depend on the parameters, and the update is not linear, so each step must be right.
    """
    with cluster.job(5, "one server") as job:
        for workers in (1, 2, 4):
            run_synchronous(job, rng, 1, workers, 50)


@pytest.mark.points(8)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_shards_over_several_servers(cluster, rng):
    """The same holds for one to four servers, whatever the number of parameters.

    Also when the servers do not divide it, and when some servers have no parameter at all.
    """
    with cluster.job(7, "one to four servers") as job:
        for servers, size in ((2, 50), (2, 51), (3, 50), (4, 50), (4, 3), (3, 1), (2, 40_001)):
            run_synchronous(job, rng, servers, 3, size, steps=4)


@pytest.mark.points(10)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_no_update_is_lost(cluster, rng):
    """Six workers push at the same time without waiting for each other: each gradient is applied
    once and whole, and every pull contains whole gradients.

    The update takes a millisecond, so that pushes pile up. Sums of whole numbers show which
    gradients are in.
    """
    with cluster.job(8, "six workers at once") as job:
        for staleness, size in ((None, 40), (2, 40), (None, 20_000)):
            case = draw_sums(rng, 2, [12] * 6, size)
            run = job.run(case.inputs(), case.params(staleness, update="slow add"))
            case.pulled(run)
            case.final(run)


@pytest.mark.points(12)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_asynchronous_mode_never_waits(cluster, rng, measure):
    """With staleness None, a worker whose host stands still for a second holds up nobody.

    The others do all their 100 steps of 5 ms meanwhile. How many of the paused worker's gradients
    they had at the end tells how far they got without it.
    """
    case = draw_sums(rng, 1, [100] * 3, 20)
    with cluster.job(4, "a host is paused") as job:
        # A worker sleeps for 100 x 5 ms, so that none is done when the pause begins.
        pause = cluster.timeline("from 0.2s to 1.3s pause node4")
        run = job.run(case.inputs(), case.params(None, sleep_s=0.005), during=pause)
    pulled = case.pulled(run)
    case.final(run)
    pause.must_have_fired()
    for worker in (0, 1):
        measure.at_least(
            f"steps that rank {worker + 1} was ahead of the paused one at the end",
            gaps(pulled, worker, 2)[-1],
            40,
            "steps",
            else_="Usual cause: a barrier in each step, or a server that waits for one worker "
            "before it listens to the next.\nNext step: answer each worker as its message comes.",
        )


@pytest.mark.points(12)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_staleness_stays_within_the_bound(cluster, rng, measure):
    """With staleness s, no worker computes step t before all others' first t - s gradients are in.

    One host is paused in the middle, for longer than the others need to run into the bound. Their
    parameters tell which of its gradients they contain.
    """
    with cluster.job(4, "a host is paused") as job:
        for bound in (1, 4):
            case = draw_sums(rng, 2, [50] * 2, 20)
            # A worker sleeps for 50 x 5 ms, so that none is done when the pause begins.
            pause = cluster.timeline("from 0.15s to 0.55s pause node4")
            run = job.run(case.inputs(), case.params(bound, sleep_s=0.005), during=pause)
            pulled = case.pulled(run)
            case.final(run)
            for worker in case.workers:
                behind = gaps(pulled, worker, 1 - worker)
                step = int(behind.argmax())
                measure.at_most(
                    f"gradients missing at most, s = {bound}, rank {worker + 2}",
                    behind[step],
                    bound,
                    "gradients",
                    else_=f"Rank {worker + 2} began step {step} with {step - behind[step]} of rank "
                    f"{3 - worker}'s gradients; {step - bound} are needed.\nUsual cause: clocks "
                    "compared with the wrong worker, or one step too late.\nNext step: answer a "
                    "pull for step t when the slowest worker left has t - s gradients applied.",
                )
            pause.must_have_fired()  # last: a bound that is broken is broken without a pause too


@pytest.mark.points(8)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_fast_workers_use_the_slack(cluster, rng, measure):
    """On mixed hardware the fast workers run ahead as far as the bound allows.

    One host gets a tenth of a processor. With s = 4, the others are four steps ahead of it nearly
    all the time; at least three on average, after the first four steps.
    """
    bound = 4
    cluster.fault("cpus 0.1 on node4")
    case = draw_sums(rng, 1, [25] * 3, 20)
    with cluster.job(4, "a slow host") as job:
        run = job.run(case.inputs(), case.params(bound, burn_s=0.004))
    pulled = case.pulled(run)
    case.final(run)
    for worker in (0, 1):
        ahead = gaps(pulled, worker, 2)[bound:].mean()
        measure.at_least(
            f"mean lead of rank {worker + 1} over the slow one",
            ahead,
            3,
            "steps",
            else_="Usual cause: workers meet every s steps, or every step, instead of one waiting "
            "only while it is s ahead.\nNext step: keep the pull of a worker that is too far "
            "ahead, and answer it when the slowest worker's push comes.",
        )


@pytest.mark.points(10)
@pytest.mark.cluster(hosts=5, slots=1)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_a_step_moves_the_parameters_twice(cluster, rng, measure):
    """Per step and worker at most 1.08 x 2|params| bytes pass: parameters in, gradient out.

    Counted on the hosts' interfaces, headers included: three workers, two servers, 512 KiB of
    parameters, 16 steps.
    """
    size, steps = 65_536, 16
    case = draw_sums(rng, 2, [steps] * 3, size)
    with cluster.job(5, "counted") as job:
        run = job.run(case.inputs(), case.params(0, record=False), output_bytes=8 * size)
    case.final(run)
    least = steps * 2 * 8 * size
    for rank in (2, 3, 4):
        traffic = run.traffic[rank]
        measure.at_most(
            f"bytes of rank {rank} per step, against 2|params|",
            (traffic.sent_bytes + traffic.received_bytes) / least,
            1.08,
            "x",
            else_=f"node{rank + 1} sent {traffic.sent_bytes / steps / 1024:.0f} KiB and received "
            f"{traffic.received_bytes / steps / 1024:.0f} KiB a step, where 512 and 512 do.\nUsual "
            "cause: every server is sent the whole gradient, or sends more than its shard.\nNext "
            "step: give each server only the part of the gradient that belongs to its shard.",
        )


@pytest.mark.points(12)
@pytest.mark.cluster(hosts=5, slots=1)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_the_rest_finishes_when_a_worker_dies(cluster, rng):
    """One of three workers is killed in mid-run, in synchronous mode: the servers and the other
    two finish.

    All gradients of the two are in; the dead one's are in as far as they came, each whole. The
    servers return its rank.
    """
    dead = 3
    case = draw_sums(rng, 2, [150] * 3, 20)
    with cluster.job(5, f"rank {dead} is killed", SURVIVE) as job:
        params, killing = case.params(0, sleep_s=0.01), job.killing({dead: 0.3})
        run = job.run(case.inputs(), params, lost={dead}, during=killing)
    must_have_survived(case, run, {dead})
    killing.must_have_fired()


def train_alone(data, order, workers, rows, steps):
    """The same training in one process: a step takes the batches of all workers."""
    params, update = np.zeros(data.features), AdaGrad(data.features)
    for step in range(steps):
        batches = [part[batch(step, rows, len(part))] for part in np.array_split(order, workers)]
        update(params, sum(click_gradient(params, *of(data.train, part)) for part in batches))
    return params


def of(rows, index):
    return rows.features[index], rows.clicked[index].astype(np.float64)


@pytest.mark.points(8)
@pytest.mark.needs("test_synchronous_mode_is_sequential_sgd")
def test_a_click_model_is_as_good_as_from_one_process(cluster, rng, measure):
    """Trained on MovieLens clicks by three workers with staleness 4, a logistic regression ranks
    as well as the same training in one process: AUC at most 0.5 points less.

    Two servers apply AdaGrad. The one process takes the three workers' batches as one step.
    """
    data, servers, workers, rows, steps = movielens(), 2, 3, 256, 200
    order = rng.permutation(len(data.train))
    alone = auc(data.test.clicked, scores(data, train_alone(data, order, workers, rows, steps)))
    ranks = [(np.zeros(b - a), order[:0]) for a, b in cuts(data.features, servers)]
    ranks += [(np.empty(0), part) for part in np.array_split(order, workers)]
    names = ("features", "clicked")
    inputs = [
        {"start": s, **dict(zip(names, of(data.train, part), strict=True))} for s, part in ranks
    ]
    params = {"servers": servers, "size": data.features, "staleness": 4, "steps": [steps] * workers}
    params |= {"gradients": "clicks", "update": "adagrad", "rows": rows, "record": False}
    with cluster.job(5, "MovieLens") as job:
        run = job.run(inputs, params)
    model = np.concatenate([output(run.outputs[r], "shard", r) for r in range(servers)])
    if model.shape != (data.features,):
        raise Failed(f"expected {data.features} parameters over all servers, got {model.size}.")
    together = auc(data.test.clicked, scores(data, model))
    measure.note("AUC of one process", alone)
    measure.at_least(
        "AUC against that of one process",
        100 * (together - alone),
        -0.5,
        "points",
        else_=f"It is {together:.4f}, one process {alone:.4f}.\nUsual cause: gradients lose "
        "digits on their way, or old parameters are used for longer than the bound allows.\nNext "
        "step: print the largest and smallest gradient before it is sent and after it has come.",
    )


def scores(data, params):
    return params[data.test.features].sum(axis=1)
