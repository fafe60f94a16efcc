"""Draw curve.svg: what an interval loses, in the simulation that the checks use.

python solutions/p17_checkpoint_strategy/figures.py
"""

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from solution import optimal_interval

mpl.use("svg")
import matplotlib.pyplot as plt

plt.rcParams["svg.fonttype"] = "none"
HERE = Path(__file__).resolve().parent
HOUR = 3600.0
MEAN = 54 * 24 * HOUR / 419  # between two interruptions of Llama 3's training
CASES = ((0.003, 1.0), (0.02, 1.0), (0.02, 0.7), (0.3, 1.0), (1.0, 1.0))


def waste(interval, cost, lifetimes):
    kept = np.floor(lifetimes / (interval + cost)).sum() * interval
    return lifetimes.sum() / kept - 1 if kept else math.inf


def main():
    rng = np.random.default_rng(17)
    figure, axes = plt.subplots(figsize=(7, 4))
    for share, shape in CASES:
        cost = share * MEAN
        lifetimes = rng.weibull(shape, 200_000) * MEAN / math.gamma(1 + 1 / shape)
        chosen = optimal_interval(cost, 1 / MEAN)
        young = math.sqrt(2 * cost * MEAN)
        intervals = chosen * np.geomspace(1 / 6, 6, 41)
        wastes = [waste(t, cost, lifetimes) for t in intervals]
        least = min(wastes)
        label = f"save {cost / 60:.1f} min, " + ("exponential" if shape == 1 else "Weibull 0.7")
        (line,) = axes.plot(intervals / 60, [100 * w for w in wastes], linewidth=1, label=label)
        ratios = [waste(t, cost, lifetimes) / least for t in (chosen, young)]
        marks = zip(("o", "x"), (chosen, young), ratios, strict=True)
        for mark, interval, ratio in marks:
            axes.plot(interval / 60, 100 * ratio * least, mark, color=line.get_color())
        print(
            f"C/M {share:g} shape {shape:g}: least {100 * least:.2f}% at "
            f"{intervals[wastes.index(least)] / 60:.1f} min; Daly {chosen / 60:.1f} min "
            f"{ratios[0]:.4f} x; Young {young / 60:.1f} min {ratios[1]:.4f} x; half, double: "
            f"{waste(chosen / 2, cost, lifetimes) / least:.3f} "
            f"{waste(chosen * 2, cost, lifetimes) / least:.3f} x"
        )
    axes.set(xscale="log", yscale="log", ylim=(5, 3000))
    axes.set(
        xlabel="interval between saves, minutes of training", ylabel="time lost per time trained, %"
    )
    axes.set_title(
        "dots: optimal_interval (Daly); crosses: Young; a failure every 3.1 h", fontsize=9
    )
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
