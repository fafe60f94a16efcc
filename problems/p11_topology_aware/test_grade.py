"""What problem 11 asks for, as checks. Each docstring is what you read in the report."""

import itertools

import data
import numpy as np
import pytest
from model import NEAREST_FIRST, STYLES, cpu_list

from grader.compare import expect_close, expect_equal, output
from grader.ended import Failed

MIB = 1 << 20
MOST_CPUS = 2048
MBIT_PER_GBPS = 2
VECTOR = 2 * MIB
WENT_ROUND = "Data went round the network that is counted."


def ask(job, what, text, ranks=1, **params):
    """One question about one text. A result that is not what the stub describes is Failed."""
    given = {"text": np.frombuffer(text.encode(), np.uint8)}
    run = job.run([given] * ranks, {"ask": what, **params}, output_bytes=1 << 20)
    must_be_well_formed(run)
    return run


def must_be_well_formed(run):
    if "malformed" in run.outputs[0]:
        raise Failed(
            f"{run.outputs[0]['malformed']}\nNext step: return what the stub describes; keep the "
            "names and shapes of Topology."
        )


def expect_topology(job, machine, form, cause="", next_step="", **look):
    """Every field of what parse_topology makes of the machine's text."""
    got = ask(job, "parse", machine.text(form, **look)).outputs[0]
    truth = machine.truth(form)
    about = f"of {machine.name}, {'XML' if form == 'xml' else f'matrix of {form}'}"
    for name in ("nics", "kinds", "nic_kinds", "numa"):
        array, want = output(got, name, 0), truth[name]
        if want.size == array.size == 0:
            continue
        array = array.astype(want.dtype) if array.dtype.kind == want.dtype.kind else array
        expect_equal(array, want, where=f"in {name} {about}", cause=cause, next_step=next_step)
    for name in ("bandwidth", "nic_gbit"):
        array, want = output(got, name, 0), truth[name]
        where = f"in {name} {about}"
        if name == "nic_gbit" and form != "xml":
            expect_equal(array, want, where=f"{where} (nan: None)")
        else:
            expect_close(array, want, relative=1e-6, where=where, cause=cause, next_step=next_step)
    expect_cpus(output(got, "cpus", 0), truth["cpus"], f"cpus {about}", cause, next_step)


def expect_cpus(rows, want, where, cause="", next_step=""):
    if rows.shape != (len(want), MOST_CPUS):
        raise Failed(f"expected {len(want)} sets of CPUs, got {len(rows)}, in {where}")
    for i, (row, cpus) in enumerate(zip(rows, want, strict=True)):
        got = cpu_list(int(cpu) for cpu in np.flatnonzero(row))
        if got != cpu_list(cpus):
            raise Failed(
                f"expected CPUs {cpu_list(cpus)}, got {got or 'none'}, for GPU {i} in "
                f"{where}.\nUsual cause: {cause}\nNext step: {next_step}"
            )


def rings(n):
    """All rings over n GPUs, one a row, beginning with GPU 0."""
    rest = np.array(list(itertools.permutations(range(1, n))), int).reshape(-1, n - 1)
    return np.hstack([np.zeros((len(rest), 1), int), rest])


def slowest(bandwidth, order):
    """GB/s of the slowest link of a ring, or of each ring of many."""
    order = np.asarray(order)
    return bandwidth[order, np.roll(order, -1, axis=-1)].min(axis=-1)


def greedy(bandwidth, start):
    """Always on to the GPU that is nearest to the last one: what must not be good enough."""
    order = [start]
    while len(order) < len(bandwidth):
        rest = [j for j in range(len(bandwidth)) if j not in order]
        order.append(max(rest, key=lambda j: bandwidth[order[-1], j]))
    return order


def shortcuts(bandwidth, every, one_way):
    """Slowest links of rings that are not good enough: nearest neighbours from any GPU, the order
    of the numbers, the largest sum, the best path from GPU 0, closed, and what is best backwards.

    Where one of these leaves a choice, the choice that comes out best.
    """
    links = bandwidth[every, np.roll(every, -1, axis=1)]
    backwards = [slowest(bandwidth.T, every)] if one_way else []
    for merit in (links.sum(axis=1), links[:, :-1].min(axis=1), *backwards):
        yield links[merit == merit.max()].min(axis=1).max()
    yield slowest(bandwidth, np.arange(len(bandwidth)))
    for start in range(len(bandwidth)):
        yield slowest(bandwidth, greedy(bandwidth, start))


def closes_badly(bandwidth):
    """Whether the first of the best paths from GPU 0, closed, is not as good as the best ring."""
    every = rings(len(bandwidth))
    links = bandwidth[every, np.roll(every, -1, axis=1)]
    path = links[:, :-1].min(axis=1).argmax()
    return links[path].min() < links.min(axis=1).max()


def trap(rng, n, form, one_way=False):
    """A machine on which every shortcut misses the best ring, and that ring's slowest link."""
    every = rings(n)
    while True:
        machine = data.drawn(rng, n, one_way=one_way)
        bandwidth = machine.truth(form)["bandwidth"]
        best = slowest(bandwidth, every).max()
        if max(shortcuts(bandwidth, every, one_way)) < best:
            return machine, best


def expect_best_ring(job, machine, form, best=None, cause="", next_step=""):
    """Compare the ring's slowest link with that of the best of all rings."""
    order = output(ask(job, "ring", machine.text(form)).outputs[0], "order", 0)
    bandwidth = machine.truth(form)["bandwidth"]
    n = len(bandwidth)
    must_be_order(order, n, machine.name)
    if n == 1:
        return
    best = slowest(bandwidth, rings(n)).max() if best is None else best
    got = slowest(bandwidth, order)
    if got < best:
        k = int(np.argmin(bandwidth[order, np.roll(order, -1)]))
        link = f"GPU {order[k]} to GPU {order[(k + 1) % n]}"
        raise Failed(
            f"expected a ring whose slowest link has {best:g} GB/s, got {got:g} GB/s, on {link} of "
            f"{order.tolist()} for {machine.name} ({form}).\nUsual cause: "
            f"{cause or 'a ring built step by step, or the closing link forgotten.'}\nNext step: "
            f"{next_step or 'compare with all (n-1)! rings for n = 4 on paper.'}"
        )


def must_be_order(order, n, name):
    if sorted(order.tolist()) != list(range(n)):
        raise Failed(
            f"expected every GPU of 0 to {n - 1} once, got {order.tolist()}, for {name}.\n"
            "Next step: return a list with a permutation; leave the first GPU out at the end."
        )


def best_nics(machine, form):
    """The binding that the stub's rule gives: nearest, fastest, least used, first."""
    truth, used, names = machine.truth(form), {}, []
    for near in truth["nic_kinds"]:
        options = [
            (
                NEAREST_FIRST.index(kind),
                -np.nan_to_num(truth["nic_gbit"][k]),
                used.get(k, 0),
                k,
            )
            for k, kind in enumerate(near)
        ]
        k = min(options)[-1] if options else None
        used[k] = used.get(k, 0) + 1
        names.append("" if k is None else truth["nics"][k])
    return names


@pytest.mark.points(10)
def test_reads_the_matrix_of_every_driver(cluster, rng):
    """`nvidia-smi topo -m` is read in the styles of 2018, 2021 and 2023, as printed and as copied.

    2018 has "CPU Affinity" alone, 2021 a NUMA column, 2023 NIC0.. with a legend and GPU NUMA ID.
    On a terminal the header is underlined: escape codes stand around it.
    """
    with cluster.job(1, "matrices") as job:
        for make in data.MACHINES.values():
            machine = make().shuffled(rng)
            for style in STYLES:
                look = {"colour": bool(rng.integers(2)), "spaces": bool(rng.integers(2))}
                expect_topology(
                    job,
                    machine,
                    style,
                    cause="columns counted from the header's words, where `CPU Affinity` is two "
                    "and `GPU NUMA ID` looks like a GPU; or escape codes left in the header.",
                    next_step="count the names up to `CPU Affinity`; a row has that many cells, "
                    "then CPUs, then the NUMA node.",
                    **look,
                )


@pytest.mark.points(12)
def test_reads_nccl_xml(cluster, rng):
    """NCCL's topology file is read: tree of CPUs, bridges, GPUs and NICs, NVLinks by bus id.

    GPUs stand in the order of their buses and are numbered by dev. The NVSwitch is no GPU.
    """
    with cluster.job(1, "XML") as job:
        for make in data.MACHINES.values():
            expect_topology(
                job,
                make().shuffled(rng),
                "xml",
                cause="GPUs numbered as they stand in the file; switches taken for GPUs; masks "
                "read from the wrong end; or the lanes of a slow card ignored.",
                next_step="print your kinds beside `python data.py NAME 2023` for that machine.",
            )


@pytest.mark.points(8)
@pytest.mark.needs("test_reads_nccl_xml")
def test_missing_and_one_way_links(cluster, rng):
    """Links that are missing, listed in one direction only, or lost to the switch are read so.

    What stands under GPU i is i's direction. Behind a switch the GPU with fewer links decides.
    """
    with cluster.job(1, "missing links") as job:
        machines = [data.drawn(rng, n, one_way=True) for n in (3, 5, 8)]
        machines += [data.lopsided_four(rng), data.with_lost_links(data.dgx_a100(), rng)]
        for machine in machines:
            expect_topology(
                job,
                machine,
                "xml",
                cause="the matrix filled from one triangle, or a link listed once taken for two.",
                next_step="take i to j from what stands under GPU i; without NVLink it is PCIe.",
            )


@pytest.mark.points(4)
@pytest.mark.needs("test_reads_the_matrix_of_every_driver", "test_reads_nccl_xml")
def test_refuses_what_it_cannot_read(cluster, rng):
    """A text that is neither, is cut short or names an unknown connection raises ValueError.

    So does `bind` for a rank that has no GPU.
    """
    matrix, tree = data.dgx1_v100().text("2021"), data.dgx1_v100().text("xml")
    lines = matrix.splitlines()
    texts = {
        "an empty text": "",
        "a message of the driver": "NVIDIA-SMI has failed because it couldn't communicate.\n",
        "rows of the last GPUs missing": "\n".join(lines[:6]),
        "a row cut short": "\n".join([*lines[:8], lines[8][:20]]),
        "an unknown connection": matrix.replace("NV2", "NW2", 1),
        "XML cut short": tree[: len(tree) // 2],
    }
    with cluster.job(1, "bad texts") as job:
        for what, text in texts.items():
            expect_refusal(ask(job, "refuse", text), what)
        for rank in (-1, 8):
            expect_refusal(ask(job, "refuse", matrix, rank=rank), f"rank {rank} of 8 GPUs")


def expect_refusal(run, what):
    kind, text = (str(word) for word in output(run.outputs[0], "raised", 0))
    if kind != "ValueError" or len(text) < 10:
        raise Failed(
            f"expected ValueError with a sentence for {what}, got {kind} {text!r}.\nUsual cause: "
            "an IndexError on the way, or a topology made of what was left.\nNext step: check the "
            "header, the number of rows, the cells of each row, and every kind."
        )


@pytest.mark.points(8)
@pytest.mark.needs("test_reads_the_matrix_of_every_driver")
def test_ring_on_known_machines(cluster, rng):
    """The ring is the best one on machines that are sold, with their GPUs numbered otherwise.

    On some the best ring avoids the link between the sockets: SYS is slower than NODE.
    """
    with cluster.job(1, "known machines") as job:
        for name in ("laptop", "workstation", "epyc_nps4", "dgx1_v100", "hgx_h100"):
            expect_best_ring(job, data.MACHINES[name]().shuffled(rng), "2023")
        for _ in range(6):
            expect_best_ring(
                job,
                numbered_badly(rng, "2021"),
                "2021",
                cause="all PCIe connections held for equally fast, or the closing link forgotten.",
                next_step="use the card's table: SYS 8, NODE 12, PHB 16, PXB 20, PIX 24 GB/s.",
            )


def numbered_badly(rng, form):
    """The bridged pairs in such an order that who forgets to close the ring is not in luck."""
    while True:
        machine = data.bridged_pairs().shuffled(rng)
        if closes_badly(machine.truth(form)["bandwidth"]):
            return machine


@pytest.mark.points(12)
@pytest.mark.needs("test_reads_the_matrix_of_every_driver")
def test_ring_is_the_best_there_is(cluster, rng):
    """On machines drawn anew the slowest link is as fast as in the best of all (n-1)! rings.

    None is won by going to the nearest GPU, by the largest sum, by the best open path, or in the
    order of the numbers.
    """
    with cluster.job(1, "drawn machines") as job:
        for n in (5, 6, 7, 8, 8, 8):
            machine, best = trap(rng, n, "2021")
            expect_best_ring(
                job,
                machine,
                "2021",
                best,
                cause="a choice that looks one step ahead, or the sum maximised instead of the "
                "smallest.",
                next_step="fix a least bandwidth, keep the links that have it, ask for a ring.",
            )


@pytest.mark.points(6)
@pytest.mark.needs("test_ring_is_the_best_there_is", "test_missing_and_one_way_links")
def test_ring_runs_the_right_way_round(cluster, rng):
    """Where links have a direction, so has the ring: backwards it may be slower."""
    with cluster.job(1, "one-way links") as job:
        for n in (4, 5, 6, 7, 8):
            machine, best = trap(rng, n, "xml", one_way=True)
            expect_best_ring(
                job,
                machine,
                "xml",
                best,
                cause="bandwidth[j][i] read where the data flows from i to j.",
                next_step="data flows from order[k] to order[k+1]; ask bandwidth in that order.",
            )


@pytest.mark.points(8)
@pytest.mark.needs("test_reads_the_matrix_of_every_driver", "test_reads_nccl_xml")
def test_ranks_stay_on_their_numa_node(cluster, rng):
    """Each rank gets the CPUs and the NUMA node of its own GPU, however these are numbered.

    On an A100 server GPUs 0 and 1 sit on node 3; on an EPYC with four nodes, GPU 0 on the last.
    """
    with cluster.job(1, "CPUs and nodes") as job:
        for name in ("dgx_a100", "epyc_nps4", "bridged_pairs", "dgx1_v100", "laptop"):
            for machine, form in itertools.product(
                (data.MACHINES[name](), data.MACHINES[name]().shuffled(rng)),
                ("2018", "2023", "xml"),
            ):
                got, truth = ask(job, "bind", machine.text(form)).outputs[0], machine.truth(form)
                where = f"the binding of the ranks of {machine.name} ({form})"
                expect_equal(
                    output(got, "numa", 0),
                    truth["numa"],
                    where=f"among the NUMA nodes in {where}; -1: None",
                    cause="node computed from the rank, as if GPUs filled the nodes in order.",
                    next_step="look it up: topology.numa[rank].",
                )
                expect_cpus(
                    output(got, "cpus", 0),
                    truth["cpus"],
                    where,
                    "CPUs computed from the rank.",
                    "look them up: topology.cpus[rank].",
                )


@pytest.mark.points(8)
@pytest.mark.needs("test_ranks_stay_on_their_numa_node")
def test_ranks_use_their_nearest_nic(cluster, rng):
    """Each rank gets the nearest NIC, then the fastest, then the one that fewest ranks share."""
    with cluster.job(1, "NICs") as job:
        for make, form in itertools.product(data.MACHINES.values(), ("2021", "2023", "xml")):
            machine = make().shuffled(rng)
            got = output(ask(job, "bind", machine.text(form)).outputs[0], "nic", 0).astype("U64")
            expect_equal(
                got,
                np.array(best_nics(machine, form), dtype="U64"),
                where=f"among the NICs of the ranks of {machine.name} ({form}); '': None",
                cause="the first NIC for everyone, or all ranks of a switch on the same one of "
                "its two.",
                next_step="sort by (nearness, -speed, ranks bound so far, index).",
            )


@pytest.mark.points(14)
@pytest.mark.cluster(hosts=4, slots=1)
@pytest.mark.network_faults
@pytest.mark.needs("test_missing_and_one_way_links")
def test_your_order_pays_on_real_links(cluster, rng, measure):
    """On four hosts whose twelve links are as fast as the topology says, your ring is at least 1.8
    times as fast as the ring in rank order.

    2 Mbit/s for each GB/s. Rank order runs before and after yours, in one job, with the same
    all-reduce.
    """
    machine, best = emulated(rng)
    rates = MBIT_PER_GBPS * machine.truth("xml")["bandwidth"]
    links = itertools.permutations(range(4), 2)
    lines = [f"rate {rates[i, j]:g}mbit on node{i + 1}->node{j + 1}" for i, j in links]
    cluster.fault("\n".join(lines))
    inputs = [
        {
            "text": np.frombuffer(machine.text("xml").encode(), np.uint8),
            "vector": rng.integers(-(2**60), 2**60, VECTOR // 8),
        }
        for _ in range(4)
    ]
    bound_s = 1.5 * VECTOR * 8 / (MBIT_PER_GBPS * best * 1e6)
    with cluster.job(4, "rank order and yours") as job:
        sent = []
        before_s = ring_seconds(job, inputs, "rank", sent)
        yours = measure.best_of(
            lambda: ring_seconds(job, inputs, "yours", sent) / bound_s, enough=1.5, most=5
        )
        after_s = ring_seconds(job, inputs, "rank", sent)
    least = min(sent) / (1.5 * VECTOR)
    measure.at_least("bytes sent by a host, against 2(n-1)/n", least, 1, "x", else_=WENT_ROUND)
    judge_times(min(before_s, after_s) / bound_s, yours.best, measure)


def ring_seconds(job, inputs, order, sent):
    """One all-reduce along a ring. Its sum must be right; `sent` gets the hosts' bytes."""
    run = job.run(inputs, {"ask": "all-reduce", "order": order})
    must_be_well_formed(run)
    must_be_order(output(run.outputs[0], "order", 0), 4, "the emulated machine")
    want = np.sum([given["vector"] for given in inputs], axis=0)
    for rank, outputs in enumerate(run.outputs):
        expect_equal(output(outputs, "total", rank), want, where=f"in the sum on rank {rank}")
    sent += [traffic.sent_bytes for traffic in run.traffic]
    return run.elapsed_s


def judge_times(rank, yours, measure):
    """Both in multiples of the time that the best ring's slowest link needs."""
    about = (
        "Usual cause: your ring crosses a link that PCIe or the sockets have to carry.\n"
        "Next step: print order and bandwidth[order[k]][order[k+1]] for each k."
    )
    measure.note("rank order against the bound", rank, "x")
    measure.at_least("faster than rank order", rank / yours, 1.8, "x", else_=about)
    measure.at_most("time against the bound", yours, 2.0, "x", else_=about)


def emulated(rng):
    """A machine of four GPUs on which rank order is slow and an open path closes badly, and its
    best ring's slowest link."""
    while True:
        machine = data.lopsided_four(rng)
        bandwidth = machine.truth("xml")["bandwidth"]
        best = slowest(bandwidth, rings(4)).max()
        if slowest(bandwidth, np.arange(4)) * 5 < best and closes_badly(bandwidth):
            return machine, best
