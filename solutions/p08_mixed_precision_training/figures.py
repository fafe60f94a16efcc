"""Draw curve.svg: the loss on handwritten digits in float32, bfloat16 and float16 on four ranks,
how far it strays from float32, and what the loss scale does.

    python solutions/p08_mixed_precision_training/figures.py

Runs the reference as four ranks on this machine, over gloo.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RANKS, STEPS, BATCH, COUNT, RATE, EVERY = 4, 400, 16, 2, 0.25, 10
# name -> (compute, wire, settings of the scaler, weights rounded to 16 bits after each step)
QUIET = {"init_scale": 1024.0, "growth_interval": 10_000}
RUNS = {
    "float32": ("float32", "float32", QUIET, False),
    "bfloat16": ("bfloat16", "bfloat16", QUIET, False),
    "float16": ("float16", "float16", {"init_scale": 2.0**16, "growth_interval": 40}, False),
    "bfloat16, no master weights": ("bfloat16", "bfloat16", QUIET, True),
}


def rank_program(rank, folder):
    """Train all RUNS; rank 0 keeps the losses over the training images, and the scales."""
    import torch
    import torch.distributed as dist

    sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "problems" / HERE.name)]
    import model as models
    from solution import DynamicLossScaler, train_step

    from grader.datasets.digits import digits

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    images, labels = (torch.from_numpy(a) for a in (digits()[0].images, digits()[0].labels))
    for number, (compute, wire, settings, rounds) in enumerate(RUNS.values()):
        torch.manual_seed(8)
        model = models.build("digits", width=48)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        scaler, draw = DynamicLossScaler(**settings), torch.Generator().manual_seed(rank)
        losses, scales, made = [], [], 0
        for step in range(STEPS):
            if step % EVERY == 0:
                with torch.no_grad():
                    losses.append(model(images, labels).item())
            picks = torch.randint(len(images), (COUNT, BATCH), generator=draw)
            types = {"compute_dtype": getattr(torch, compute), "wire_dtype": getattr(torch, wire)}
            batches = [(images[pick], labels[pick]) for pick in picks]
            world = dist.group.WORLD
            made += train_step(
                model, optimizer, scaler, batches, world, max_norm=float("inf"), **types
            )
            scales.append(scaler.scale)
            if rounds:
                for parameter in model.parameters():
                    parameter.data = parameter.data.to(torch.bfloat16).float()
        if rank == 0:
            np.savez(f"{folder}/{number}.npz", losses=losses, scales=scales, made=made)
    dist.destroy_process_group()


def draw():
    import matplotlib
    import torch.multiprocessing as mp

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "08"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_program, (folder,), RANKS)
        kept = [dict(np.load(f"{folder}/{number}.npz")) for number in range(len(RUNS))]
    figure, (above, middle, below) = plt.subplots(
        3, sharex=True, figsize=(6.4, 7), height_ratios=[3, 2, 2]
    )
    at = np.arange(0, STEPS, EVERY)
    full = kept[0]["losses"]
    for name, found in zip(RUNS, kept, strict=True):
        away = 100 * (found["losses"] / full - 1)
        above.plot(at, found["losses"], label=name, linewidth=1.2)
        middle.plot(at, away, linewidth=1.2)
        print(
            f"{name}: loss {found['losses'][-1]:.4f} at step {at[-1]}, at most "
            f"{np.abs(away).max():.2f}% from float32, {found['made']} of {STEPS} steps made"
        )
    below.step(np.arange(STEPS), kept[2]["scales"], color="C2", linewidth=1.2)
    above.set_yscale("log")
    above.set_ylabel("loss, 1,500 images")
    above.legend(frameon=False)
    middle.set_ylim(-3, 12)
    middle.set_ylabel("% away from float32")
    below.set_yscale("log", base=2)
    below.set_ylabel("scale, float16")
    below.set_xlabel("steps")
    for axes in (above, middle, below):
        axes.grid(alpha=0.3)
    above.set_title(f"Digits, {RANKS} ranks, {COUNT} micro-batches of {BATCH} each", fontsize=10)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
