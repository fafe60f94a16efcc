"""Run one layer in its three strategies over batch and outputs, set the winners beside the plan's,
draw curve.svg.

    python solutions/p05_data_or_model_parallel/figures.py      (about a minute and a half)

A time is the best of two steps on the grader's clock, everything that a case needs included.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from cluster import enclosure

HERE = Path(__file__).resolve().parent
PROBLEM = HERE.parents[1] / "problems" / HERE.name
HOSTS, RATE_MBIT, DELAY_MS, INPUTS = 3, 100, 8, 256
SIDES = [48, 144, 432, 864, 1296]
TIE = 1.15
COLOURS = {"data": "#4477aa", "column": "#ddaa33", "row": "#bb5566"}
Times = dict[tuple[bool, int, int], dict[str, float]]


def plan_of(strategy, outputs, batch, whole):
    import model
    import solution

    layer = model.Layer(INPUTS, outputs, batch, 4, True, whole)
    there = model.Cluster(HOSTS, RATE_MBIT * 1e6 / 8, DELAY_MS / 1e3, 1 << 40)
    return solution._plan(strategy, layer, there)


def measure() -> Times:
    """Seconds of a step by (whole output, outputs, batch) and strategy."""
    import numpy as np

    from cluster.backends.netns import NetnsBackend
    from grader.bench import Bench, Wanted
    from grader.launching import launcher_for
    from grader.package import load
    from grader.submission import read

    problem = load(PROBLEM)
    found: Times = {}
    wanted = Wanted(hosts=HOSTS, slots=1, network_faults=True)
    with NetnsBackend() as backend, launcher_for(problem, backend.name) as launcher:
        bench = Bench(backend, launcher, problem, read(HERE / "solution.py", problem), wanted)
        bench.fault(f"rate {RATE_MBIT}mbit delay {DELAY_MS}ms on all")
        with bench.job(HOSTS, "sweep") as job:
            for whole, outputs, batch in product((False, True), SIDES, SIDES):
                shape = {"in_features": INPUTS, "out_features": outputs, "batch": batch}
                shape |= {"dtype_bytes": 4, "bias": True, "whole_output": whole}
                sizes = {"weight": (outputs, INPUTS), "bias": (outputs,)}
                sizes |= {"x": (batch, INPUTS), "dy": (batch, outputs)}
                given = {
                    f"{key}_{name}": np.ones(size, np.float32)
                    for key, size in sizes.items()
                    for name in COLOURS
                }
                job.run([given] * HOSTS, {"layers": {s: [s, shape] for s in COLOURS}})
                found[whole, outputs, batch] = {
                    s: min(
                        job.run(
                            [{}] * HOSTS, {"steps": [s], "sums": True}, output_bytes=1 << 20
                        ).elapsed_s
                        for _ in range(2)
                    )
                    for s in COLOURS
                }
        bench.close()
    return found


def report(times: Times) -> None:
    """Print how often the planned strategy won, what it cost where not, and how long steps take."""
    ratios = sorted(
        seconds / plan_of(s, outputs, batch, whole).seconds
        for (whole, outputs, batch), by in times.items()
        for s, seconds in by.items()
    )
    for whole in (False, True):
        wins, regret, ties = 0, [], 0
        for (gathered, outputs, batch), by in times.items():
            if gathered == whole:
                plans = sorted((plan_of(s, outputs, batch, whole).seconds, s) for s in COLOURS)
                planned = plans[0][1]
                regret.append(by[planned] / min(by.values()))
                ties += plans[1][0] < TIE * plans[0][0]
                wins += plans[1][0] >= TIE * plans[0][0] and regret[-1] == 1
        print(
            f"whole_output {whole}: planned ahead by {TIE} x or more {len(regret) - ties} times, "
            f"of which won {wins}; the chosen one took at most {max(regret):.2f} x the fastest"
        )
        for rule in COLOURS:
            lost = [by[rule] / min(by.values()) for key, by in times.items() if key[0] == whole]
            print(f"   always {rule}: {sum(lost) / len(lost):.2f} x on average, {max(lost):.1f} x")
    print(
        f"measured / planned: least {ratios[0]:.2f}, median {ratios[len(ratios) // 2]:.2f}, "
        f"most {ratios[-1]:.2f}"
    )


def winner(by: dict[str, float]) -> tuple[str, bool]:
    """Who was fastest, and whether another was close."""
    first, second, _ = sorted(by.values())
    return min(by, key=by.__getitem__), second < TIE * first


def draw(times: Times) -> None:
    import matplotlib
    import numpy as np

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "05", "svg.fonttype": "none"})
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap

    fine = np.geomspace(30, 2000, 80)
    figure, both = pyplot.subplots(1, 2, figsize=(8, 4.4), sharey=True)
    for axes, whole in zip(both, (False, True), strict=True):
        seconds = np.array(
            [[[plan_of(s, o, b, whole).seconds for o in fine] for b in fine] for s in COLOURS]
        )
        axes.pcolormesh(
            fine,
            fine,
            seconds.argmin(axis=0),
            cmap=ListedColormap(list(COLOURS.values())),
            alpha=0.35,
            shading="nearest",
            rasterized=True,
            vmin=0,
            vmax=2,
        )
        for name, colour in COLOURS.items():
            for tie, face in ((False, colour), (True, "none")):
                points = [
                    key[1:]
                    for key, by in times.items()
                    if key[0] == whole and winner(by) == (name, tie)
                ]
                if points:
                    label = f"{name}{', close' if tie else ''}"
                    style = {"color": colour, "markerfacecolor": face, "label": label}
                    axes.plot(*zip(*points, strict=True), "o", **style)
        axes.set(xscale="log", yscale="log", xlabel="out_features")
        axes.set_title("y gathered where it is cut" if whole else "y left in parts", fontsize=9)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=3)
    both[0].set(ylabel="batch")
    figure.suptitle(
        f"in_features {INPUTS}, {HOSTS} hosts, {RATE_MBIT} Mbit/s, {DELAY_MS} ms: planned winner "
        "(areas), measured (dots)",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    enclosure.enter()
    sys.path += [str(PROBLEM), str(HERE)]
    measured = measure()
    report(measured)
    draw(measured)
