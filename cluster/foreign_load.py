"""How much processor time others took while something of ours was timed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# A program that takes one of two cores leaves ranks that wait for a link as fast as they were.
_MOST, _A_GOOD_PART, _ALL = 0.65, 0.2, 0.95
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class LoadReading:
    """Processor seconds since boot: of the whole machine, and of the processes seen from here.

    In an enclosure those are the grader, the switch and every host. stolen_s: taken by the
    hypervisor for other machines.
    """

    at: float
    busy_s: float
    ours_s: float
    stolen_s: float


def read_load() -> LoadReading:
    """Read the counters now. Costs about a millisecond."""
    words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system = (int(word) for word in words[:3])
    stolen = int(words[7]) if len(words) > 7 else 0
    ours = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ours += sum(int(field) for field in fields[11:15])
    return LoadReading(
        time.monotonic(), (user + nice + system) / _TICKS, ours / _TICKS, stolen / _TICKS
    )


def crowded(before: LoadReading, after: LoadReading) -> bool:
    """Whether others may have kept ours waiting: they took most of the machine between two
    readings, or a good part of one that had nothing left to give."""
    elapsed = max(after.at - before.at, 1e-3) * (os.cpu_count() or 1)
    used = (after.busy_s - before.busy_s + after.stolen_s - before.stolen_s) / elapsed
    share = foreign_share(before, after)
    return share >= _MOST or (share >= _A_GOOD_PART and used >= _ALL)


def foreign_share(before: LoadReading, after: LoadReading) -> float:
    """Share of the machine's processors, 0 to 1, that went to others between two readings."""
    elapsed = max(after.at - before.at, 1e-3)
    busy = after.busy_s - before.busy_s
    ours = max(0.0, after.ours_s - before.ours_s)
    foreign = max(0.0, busy - ours) + (after.stolen_s - before.stolen_s)
    return min(1.0, foreign / elapsed / (os.cpu_count() or 1))
