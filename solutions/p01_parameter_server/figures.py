"""Draw curve.svg: AUC on MovieLens against time, four workers that stall in turn, for five bounds.

    python solutions/p01_parameter_server/figures.py

Runs the reference as one server and four workers on this machine, through mpirun.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STALENESS = (0, 1, 4, 16, None)
WORKERS, STEPS, ROWS = 4, 80, 256
# A step takes a worker this long on top of the gradient. Each stands still in one step of ten, and
# no two in the same one.
STEP_S, STALL_S, STALL_EVERY = 0.010, 0.15, 10
SNAPSHOTS = 40


def rank_program(staleness, target):
    """What runs on each rank: rank 0 serves and keeps copies, the others train."""
    from mpi4py import MPI

    sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "problems" / HERE.name)]
    import model
    from solution import serve, work

    from grader.datasets.clicks import movielens

    comm, data = MPI.COMM_WORLD, movielens()
    comm.Barrier()
    began = time.monotonic()
    if comm.Get_rank() == 0:
        shard, update, copies = np.zeros(data.features), model.AdaGrad(data.features), []
        every = STEPS * (1 if staleness == 0 else WORKERS) // SNAPSHOTS
        calls = 0

        def apply_update(values, gradient):
            nonlocal calls
            update(values, gradient)
            calls += 1
            if calls % max(1, every) == 0:
                copies.append((time.monotonic() - began, values.copy()))

        serve(comm, 1, shard, apply_update, staleness)
        copies.append((time.monotonic() - began, shard))
        np.savez(target, times=[t for t, _ in copies], params=[p for _, p in copies])
        return
    worker = comm.Get_rank() - 1
    order = np.array_split(np.random.default_rng(1).permutation(len(data.train)), WORKERS)[worker]
    features, clicked = data.train.features[order], data.train.clicked[order]

    def gradient(params, step):
        stalls = (step + 3 * worker) % STALL_EVERY == STALL_EVERY - 1
        time.sleep(STALL_S if stalls else STEP_S)
        rows = model.batch(step, ROWS, len(clicked))
        return model.click_gradient(params, features[rows], clicked[rows])

    work(comm, 1, data.features, gradient, STEPS)


def measure(staleness):
    """Run once; return times and AUC of the copies that the server kept."""
    from grader.auc import auc
    from grader.datasets.clicks import movielens

    test = movielens().test
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/copies.npz"
        program = [sys.executable, __file__, str(staleness), target]
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        options += ["--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"]
        mpirun = str(Path(sys.prefix) / "bin" / "mpirun")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [mpirun, *options, "-n", str(1 + WORKERS), *program]
        subprocess.run(command, check=True, env=environment, timeout=60)
        kept = np.load(target)
        scores = [auc(test.clicked, p[test.features].sum(axis=1)) for p in kept["params"]]
        return kept["times"], np.array(scores)


def draw():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "01"
    from matplotlib import pyplot as plt

    sys.path.insert(0, str(ROOT))
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for staleness in STALENESS:
        times, scores = measure(staleness)
        name = "asynchronous" if staleness is None else f"s = {staleness}"
        axes.plot(times, scores, label=name, linewidth=1.2)
        print(f"{name}: done after {times[-1]:.2f} s, AUC {scores[-1]:.4f}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("AUC on held-out clicks")
    axes.set_ylim(0.70, 0.785)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(
        f"MovieLens, {WORKERS} workers, each stalls 150 ms in every tenth step", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        rank_program(None if sys.argv[1] == "None" else int(sys.argv[1]), sys.argv[2])
    else:
        draw()
