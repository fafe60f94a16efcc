"""Sweep the window, and plot time and losses: `python figures.py`.

Runs the reference on the emulated cluster, twelve flushes for each window, on the links that the
checks use. Prints the figures and writes curve.svg.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cluster import enclosure
from cluster.backends.netns import NetnsBackend
from grader.bench import Bench, Wanted
from grader.launching import launcher_for
from grader.package import load
from grader.submission import read

HERE = Path(__file__).resolve().parent
LINK_MBIT, DELAY_S, RANKS, FLUSHES = 50, 0.010, 4, 12
FAULT = f"rate {LINK_MBIT}mbit delay 10ms limit 24 packets on all"
WINDOWS_KIB = (48, 72, 96, 120, 144, 192, 288, 10_000)


def storm(rng: np.random.Generator) -> np.ndarray:
    """The lengths that the checks use."""
    sizes = rng.choice([64, 128, 256, 512, 1024], 1998, p=[0.8, 0.1, 0.05, 0.03, 0.02])
    return np.insert(sizes, np.sort(rng.integers(999, 1999, 2)), 100_000).astype(np.int64)


def packets(bench: Bench) -> np.ndarray:
    time.sleep(0.15)
    counted = [host.data_bytes() for host in bench.cluster.hosts]
    return np.array(
        [sum(t.sent_packets for t in counted), sum(t.received_packets for t in counted)]
    )


def flushes(
    bench: Bench, window_kib: int, lengths: np.ndarray, rng: np.random.Generator
) -> tuple[list[float], float]:
    """Times against the bound, and the share of packets lost."""
    size = int(lengths.sum())
    bound_s = 2 * (RANKS - 1) / RANKS * 4 * size * 8 / (LINK_MBIT * 1e6) + 2 * DELAY_S
    bench.fault(FAULT)
    times: list[float] = []
    with bench.job(RANKS, "sweep") as job:
        for flush in range(FLUSHES + 1):
            if flush == 1:
                before = packets(bench)
            inputs = [
                {
                    "gradient": rng.integers(-1000, 1000, size).astype(np.float32),
                    "lengths": lengths,
                    "order": rng.permutation(len(lengths)),
                    "slow": np.array([False]),
                }
                for _ in range(RANKS)
            ]
            buffers = {"fusion_bytes": 32 << 10, "window_bytes": window_kib << 10}
            times.append(job.run(inputs, buffers, timeout_s=30).elapsed_s / bound_s)
        sent, received = packets(bench) - before
    return times[1:], (sent - received) / sent


def main() -> None:
    enclosure.enter()
    problem = load(HERE.parents[1] / "problems" / HERE.name)
    rng = np.random.default_rng(7)
    lengths, rows = storm(rng), []
    with NetnsBackend() as backend, launcher_for(problem, backend.name) as launcher:
        for window_kib in WINDOWS_KIB:
            wanted = Wanted(RANKS, 1, network_faults=True)
            bench = Bench(backend, launcher, problem, read(HERE / "solution.py", problem), wanted)
            try:
                times, lost = flushes(bench, window_kib, lengths, rng)
            finally:
                bench.close()
            rows.append((window_kib, float(np.median(times)), max(times), 100 * lost))
            print("window {:5d} KiB  median {:.2f}  worst {:.2f}  lost {:.2f}%".format(*rows[-1]))
            sys.stdout.flush()
    plot(rows)


def plot(rows: list[tuple[int, float, float, float]]) -> None:
    plt.rcParams["svg.fonttype"] = "none"
    places = range(len(rows))
    names = [str(window) if window < 1000 else "none" for window, *_ in rows]
    figure, (above, below) = plt.subplots(2, 1, figsize=(6, 5), sharex=True)
    above.plot(places, [row[2] for row in rows], "o-", label="worst of 12")
    above.plot(places, [row[1] for row in rows], "s-", label="median")
    above.axhline(2.0, color="grey", linewidth=0.8, linestyle="--")
    above.set_ylabel("flush / bound")
    above.set_ylim(bottom=0.9)
    above.legend(frameon=False)
    below.bar(places, [row[3] for row in rows], color="firebrick")
    below.set_ylabel("packets lost, %")
    below.set_xlabel("window, KiB")
    below.set_xticks(list(places), names)
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(HERE / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
