"""Draw curve.svg: loss on held-out MovieLens clicks around a resize from four members to one.

    python solutions/p20_elastic_workers/figures.py

Runs the reference, and two of the wrong submissions, as four ranks on this machine.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESIZE, AFTER, PER_RANK = 60, 40, 64
RUNS = {
    "reference": "solution.py",
    "rate not rescaled": "submissions/wrong_rate_not_rescaled.py",
    "restart from a checkpoint": "submissions/wrong_restarts_from_a_checkpoint.py",
}


def rank_program(file, target):
    """What runs on each rank; rank 2 stays to the end, and keeps the loss of each step."""
    from mpi4py import MPI

    sys.path[:0] = [str(ROOT), str(ROOT / "problems" / HERE.name)]
    import model

    from grader.datasets.clicks import movielens

    spec = importlib.util.spec_from_file_location("training", HERE / file)
    training = importlib.util.module_from_spec(spec)
    sys.modules["training"] = training
    spec.loader.exec_module(training)
    comm, data = MPI.COMM_WORLD.Dup(), movielens()
    rows = RESIZE * 4 * PER_RANK + AFTER * PER_RANK
    chosen = np.sort(np.random.default_rng(1).permutation(len(data.train))[:rows])
    tables = data.train.features[chosen], data.train.clicked[chosen].astype(np.float64)
    plan = ((0, (0, 1, 2, 3)), (RESIZE, (2,)))
    work = model.Work(1, rows, PER_RANK, 4 * PER_RANK, 8.0, 0.9, plan, 1)
    state = model.State(np.zeros(data.features), np.zeros(data.features))
    losses = []

    def gradient(params, numbers):
        score = params[data.test.features].sum(axis=1)
        losses.append(np.mean(np.logaddexp(0, score) - data.test.clicked * score))
        return model.click_gradient(params, numbers, *tables)

    training.train(comm, work, state, gradient)
    if comm.Get_rank() == 2:
        np.save(target, losses)


def measure(file):
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/losses.npy"
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        options += ["--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"]
        mpirun = str(Path(sys.prefix) / "bin" / "mpirun")
        command = [mpirun, *options, "-n", "4", sys.executable, __file__, file, target]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, timeout=60)
        return np.load(target)


def draw():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "20"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for name, file in RUNS.items():
        losses = measure(file)
        axes.plot(losses, label=name, linewidth=1.2)
        print(f"{name}: variance {losses[RESIZE - 20 : RESIZE + 20].var():.3g}")
    axes.axvline(RESIZE, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("step")
    axes.set_ylabel("loss on held-out clicks")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title("MovieLens, four members until step 60, then one", fontsize=10)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        rank_program(sys.argv[1], sys.argv[2])
    else:
        draw()
