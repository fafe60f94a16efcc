"""Draw curve.svg: log loss and AUC on held-out clicks against the bytes a rank has sent, for
float32, float16 and 1 bit. Four processes of this machine train with solution.py over gloo; bytes
are those of the tensors that they hand to torch.distributed, without headers.

    python figures.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    str(HERE / "submissions"),
    str(HERE.parents[1] / "problems" / HERE.name),
    str(HERE.parents[1]),
]
RANKS, STEPS, WARM_UP, EVERY, RATE, TARGET, SEED = 4, 240, 60, 5, 0.03, 0.78, 4
WAYS = ("float32", "float16", "1 bit", "1 bit without error feedback")
SENT = [0.0]  # bytes this rank has sent


def count_what_is_sent():
    """Put the bytes that each collective makes a rank send, at the least, into SENT."""
    share = (RANKS - 1) / RANKS
    for name, which, factor in (
        ("all_reduce", 0, 2 * share),
        ("all_to_all_single", 1, share),
        ("all_gather", 1, RANKS - 1),
    ):
        setattr(dist, name, counted(getattr(dist, name), which, factor))


def counted(original, which, factor):
    """`original`, adding `factor` times the bytes of its argument number `which` to SENT."""

    def function(*args, **kwargs):
        SENT[0] += factor * args[which].nbytes
        return original(*args, **kwargs)

    return function


def train(rank, store, inputs, data, points):
    """One rank, training in every way. points: (ways, evaluations, 3), filled by rank 0 with bytes,
    loss and AUC."""
    import driver
    import model
    import solution
    import wrong_no_error_feedback

    from grader.auc import auc
    from grader.rank.torch_runtime import TorchGroup

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    count_what_is_sent()
    group = TorchGroup(rank, RANKS, dist.group.WORLD, torch.device("cpu"))
    for found, way in zip(points, WAYS, strict=True):
        SENT[0] = 0.0
        weights = np.zeros(data.features + 1, np.float32)
        make = driver.fp16_steps if way == "float16" else driver.one_bit_steps
        source = wrong_no_error_feedback if "without" in way else solution
        warm_up = STEPS if way == "float32" else WARM_UP
        step = make(source, group, weights, {"warmup_steps": warm_up, "rate": RATE})
        for number in range(STEPS):
            rows = inputs[rank]["features"][number], inputs[rank]["clicked"][number]
            step(model.loss_and_gradient(weights, *rows)[1])
            if rank == 0 and (number + 1) % EVERY == 0:
                test = data.test
                loss, _ = model.loss_and_gradient(weights, test.features, test.clicked)
                value = auc(test.clicked, model.scores(weights.astype(float), test.features))
                found[number // EVERY] = torch.tensor([SENT[0], loss, value])
    dist.destroy_process_group()


def run_all(inputs, data):
    """The runs of all WAYS as convergence_report takes them."""
    points = torch.zeros(len(WAYS), STEPS // EVERY, 3, dtype=torch.float64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        without_rows = replace(data, train=data.train.part(0, 0))
        mp.spawn(train, (store, inputs, without_rows, points), nprocs=RANKS)
    names = ("bytes", "loss", "auc")
    return {
        way: [dict(zip(names, row, strict=True)) for row in found]
        for way, found in zip(WAYS, points.tolist(), strict=True)
    }


def main():
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    import solution
    import test_grade

    data = test_grade.movielens()
    inputs = test_grade.make_clicks(np.random.default_rng(SEED), steps=STEPS, batch=384)
    runs = run_all(inputs, data)
    report = solution.convergence_report(runs, TARGET, "float32")
    for way in WAYS:
        last, sent = report["final"][way], report["bytes_to_target"][way]
        print(
            f"{way}: AUC {last['auc']:.4f}, log loss {last['loss']:.4f}, {last['bytes']:,.0f} bytes"
            f" in {STEPS} steps; AUC {TARGET} for good after {sent and round(sent):,} bytes"
            if sent
            else f"{way}: AUC {last['auc']:.4f}, log loss {last['loss']:.4f}, "
            f"{last['bytes']:,.0f} bytes in {STEPS} steps; AUC {TARGET} not reached for good"
        )
    print(f"winner: {report['winner']}; savings: {report['saving']}")
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2))
    for panel, key, label in zip(
        panels, ("loss", "auc"), ("log loss, held out", "AUC, held out"), strict=True
    ):
        for way, colour in zip(WAYS, ("0.5", "C0", "C2", "C3"), strict=True):
            points = runs[way]
            sent = [point["bytes"] / 1e6 for point in points]
            panel.plot(sent, [point[key] for point in points], color=colour, label=way)
        panel.set(xlabel="MB sent by a rank", ylabel=label)
    panels[1].axhline(TARGET, color="0.8", lw=1, zorder=0)
    panels[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg")


if __name__ == "__main__":
    main()
