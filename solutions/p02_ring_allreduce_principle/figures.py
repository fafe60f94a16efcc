"""Measure the four algorithms on four emulated hosts, set them beside the formulas, draw curve.svg.

    python solutions/p02_ring_allreduce_principle/figures.py      (about a minute)

Each algorithm runs three times in a row, the last two are timed on the ranks, and a figure is the
quicker of the two times of the slowest rank. All receives are posted before anything is sent.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from cluster import enclosure

HERE = Path(__file__).resolve().parent
HOSTS, RATE_MBIT, DELAY_MS = 4, 100, 5
SIZES = [8, 1024, 8192, 32768, 131072, 262144, 524288, 1048576, 2097152, 4194304]
ALGORITHMS = {"ring": "o", "tree": "^", "recursive doubling": "s", "rabenseifner": "D"}

MEASURED = '''
import time
import torch
import torch.distributed as dist


def ring_schedule(n): ...
def cost(n, size, alpha, beta, algorithm): ...
def crossover(n, alpha, beta): ...


def plan(rank, n, algorithm, x):
    """Steps of a rank: (peer to send to, view sent, peer to receive from, view, adding)."""
    if algorithm == "ring":
        c = torch.tensor_split(x, n)
        return [((rank + 1) % n, c[(rank - t) % n], (rank - 1) % n, c[(rank - t - 1) % n],
                 t < n - 1) for t in range(2 * n - 2)]
    gaps = [1 << k for k in range(n.bit_length() - 1)]
    if algorithm == "recursive doubling":
        return [(rank ^ gap, x, rank ^ gap, x, True) for gap in gaps]
    steps = []
    if algorithm == "tree":
        for gap in gaps:
            if rank % (2 * gap) == gap:
                steps.append((rank - gap, x, None, None, True))
            elif rank % (2 * gap) == 0:
                steps.append((None, None, rank + gap, x, True))
        return steps + [(r, b, s, a, False) for s, a, r, b, _ in reversed(steps)]
    part = x
    for gap in reversed(gaps):
        low, high = torch.tensor_split(part, 2)
        part, given = (low, high) if not rank & gap else (high, low)
        steps.append((rank ^ gap, given, rank ^ gap, part, True))
    return steps + [(r, b, s, a, False) for s, a, r, b, _ in reversed(steps)]


def ring_all_reduce(tensor, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    took = []
    for _ in range(3):
        x = tensor.clone()
        began = time.monotonic()
        steps = plan(rank, n, ALGORITHM, x)
        landing = [None if into is None else torch.empty_like(into) for *_, into, _ in steps]
        posted = [None if room is None or not room.numel() else
                  dist.irecv(room, group=group, group_src=step[2])
                  for step, room in zip(steps, landing)]
        for (to, sent, _, into, adding), room, work in zip(steps, landing, posted):
            sending = None
            if to is not None and sent.numel():
                sending = dist.isend(sent, group=group, group_dst=to)
            if work is not None:
                work.wait()
            if sending is not None:
                sending.wait()
            if work is not None:
                into.copy_(into + room if adding else room)
        took.append(time.monotonic() - began)
    right = float(x[-1]) == n * (n + 1) / 2
    tensor[0] = min(took[1:]) if right else float("nan")
'''


def measure() -> dict[str, list[float]]:
    """Seconds by algorithm, one for each of SIZES."""
    import numpy as np

    from cluster.backends.netns import NetnsBackend
    from grader.bench import Bench, Wanted
    from grader.launching import launcher_for
    from grader.package import load
    from grader.submission import read

    problem = load(HERE.parents[1] / "problems" / HERE.name)
    seconds: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    wanted = Wanted(hosts=HOSTS, slots=1, network_faults=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        NetnsBackend() as backend,
        launcher_for(problem, backend.name) as launcher,
    ):
        for name in ALGORITHMS:
            path = Path(folder) / "solution.py"
            path.write_text(f"ALGORITHM = {name!r}\n{MEASURED}")
            bench = Bench(backend, launcher, problem, read(path, problem), wanted)
            bench.fault(f"rate {RATE_MBIT}mbit delay {DELAY_MS}ms on all")
            with bench.job(HOSTS, name) as job:
                for size in SIZES:
                    inputs = [{"x": np.full(size // 8, r + 1.0)} for r in range(HOSTS)]
                    run = job.run(inputs, {"part": "all_reduce"}, timeout_s=30)
                    seconds[name].append(max(float(o["x"][0]) for o in run.outputs))
            bench.close()
    return seconds


def draw(seconds: dict[str, list[float]]) -> None:
    import importlib.util

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "02", "svg.fonttype": "none"})
    from matplotlib import pyplot

    spec = importlib.util.spec_from_file_location("solution", HERE / "solution.py")
    assert spec is not None and spec.loader is not None
    solution = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(solution)
    alpha, beta = DELAY_MS / 1e3, 8 / (RATE_MBIT * 1e6)
    figure, axes = pyplot.subplots(figsize=(7.2, 4.4))
    print("size", *ALGORITHMS, sep="\t")
    for row, size in enumerate(SIZES):
        costs = [solution.cost(HOSTS, size, alpha, beta, name) for name in ALGORITHMS]
        cells = [
            f"{seconds[n][row] * 1e3:.1f} ({c * 1e3:.1f})"
            for n, c in zip(ALGORITHMS, costs, strict=True)
        ]
        print(size, *cells, sep="\t")
    for name, marker in ALGORITHMS.items():
        line = [solution.cost(HOSTS, size, alpha, beta, name) * 1e3 for size in SIZES]
        (drawn,) = axes.plot(SIZES, line, label=f"{name}, formula", linewidth=1)
        measured = [s * 1e3 for s in seconds[name]]
        axes.plot(SIZES, measured, marker, color=drawn.get_color(), markersize=4.5, label=None)
    tie = solution.crossover(HOSTS, alpha, beta)
    axes.axvline(tie, color="0.6", linewidth=0.8, linestyle=":")
    axes.annotate(f"crossover {tie / 1024:.0f} KiB", (tie, 6), fontsize=8, ha="right", rotation=90)
    axes.set(xscale="log", yscale="log", xlabel="size of the tensor, bytes", ylabel="milliseconds")
    axes.set_title(
        f"All-reduce on {HOSTS} hosts, {DELAY_MS} ms, {RATE_MBIT} Mbit/s: formulas (lines), "
        "measured (marks)",
        fontsize=9,
    )
    axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    enclosure.enter()
    draw(measure())
