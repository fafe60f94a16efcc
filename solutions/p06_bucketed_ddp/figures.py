"""Draw curve.svg: digits learned by four ranks of the reference, by one process, and without
synchronised buffers. Every curve is a run of the real code, over gloo on this machine.

    python figures.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "problems" / HERE.name), str(HERE.parents[1])]
RANKS, STEPS, RATE, SEED = 4, 100, 0.1, 6


def train(rank, store, source, inputs, losses):
    """One rank: train with the class in `source`; `losses` gets this rank's, step by step."""
    import model

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    spec = importlib.util.spec_from_file_location("submission", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrapper = module.BucketedDDP(model.build("digits", SEED, rank), dist.group.WORLD, 0.01)
    optimizer = torch.optim.SGD([p for p in wrapper.parameters() if p.requires_grad], lr=RATE)
    for step, (x, y) in enumerate(zip(inputs[rank]["x"], inputs[rank]["y"], strict=True)):
        loss = wrapper(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[rank, step] = loss.item()
    dist.destroy_process_group()


def mean_loss(source, inputs):
    losses = torch.zeros(RANKS, STEPS).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        # Forked: this process has torch, and has computed nothing yet that would have threads.
        mp.start_processes(train, (store, str(source), inputs, losses), RANKS, start_method="fork")
    return losses.mean(0).numpy()


def main():
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    import test_grade

    inputs = test_grade.make_digits(np.random.default_rng(SEED), [STEPS] * RANKS)
    four = mean_loss(HERE / "solution.py", inputs)
    apart = mean_loss(HERE / "submissions" / "wrong_buffers_not_synchronised.py", inputs)
    one = test_grade.OneProcess(SEED, inputs, RATE)
    print(f"one process and four ranks differ by at most {np.abs(one.losses - four).max():.1e}")
    late = four[-10:].mean(), apart[-10:].mean()
    print(f"loss of the last 10 steps: {late[0]:.3f}; with buffers apart {late[1]:.3f}")
    print(f"held-out digits recognised: {test_grade.recognised(one.module):.1%}")
    figure, axes = plt.subplots(figsize=(6, 3.2))
    axes.plot(one.losses, lw=4, color="0.8", label="one process, 64 images a step")
    axes.plot(four, lw=1, color="C0", label="four ranks, 16 images each")
    axes.plot(apart, lw=1, color="C3", label="buffers not synchronised")
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg")


if __name__ == "__main__":
    main()
