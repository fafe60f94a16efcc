"""Control groups of hosts, versions 1 and 2: memory, pids, CPU quota, disk speed, freezing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.interface import ClusterError, Limits, Unfit
from cluster.ledger import remove_cgroup

_ROOT = Path("/sys/fs/cgroup")
_V1_CONTROLLERS = ("cpu", "memory", "pids", "freezer")
_PERIOD_US = 20_000


@dataclass(frozen=True)
class HostCgroup:
    """The control groups of one host; `folders` maps a controller to its folder."""

    version: int
    folders: dict[str, Path]

    def add(self, pid: int) -> None:
        """Move process `pid` in."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def processes(self) -> list[int]:
        """Every process in the group, as seen from the caller's PID namespace."""
        folder = next(iter(self.folders.values()))
        text = (folder / "cgroup.procs").read_text()
        return [int(word) for word in text.split() if word != "0"]

    def set_cpus(self, cpus: float | None) -> None:
        """Set the CPU quota to `cpus` processors; None lifts it."""
        quota = -1 if cpus is None else max(1000, round(cpus * _PERIOD_US))
        if self.version == 1:
            (self.folders["cpu"] / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self.folders["cpu"] / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            text = "max" if quota < 0 else str(quota)
            (self.folders["cpu"] / "cpu.max").write_text(f"{text} {_PERIOD_US}")

    def set_disk_rate(self, device: str, bytes_per_s: float | None) -> None:
        """Let the group move so many bytes a second to and from `device`, such as "7:0".

        Raises Unfit when the kernel does not hold it afterwards.
        """
        rate = 0 if bytes_per_s is None else max(1, round(bytes_per_s))
        try:
            if self.version == 1:
                files = [
                    self.folders["blkio"] / f"blkio.throttle.{way}_bps_device"
                    for way in ("read", "write")
                ]
                for file in files:
                    file.write_text(f"{device} {rate}")
            else:
                files, word = [self.folders["cpu"] / "io.max"], rate or "max"
                files[0].write_text(f"{device} rbps={word} wbps={word}")
            held = all(str(rate) in file.read_text() for file in files)
        except (OSError, KeyError) as error:
            raise Unfit(f"this kernel's control groups cannot slow a disk: {error}") from error
        if rate and not held:
            raise Unfit("this kernel's control groups did not take the disk's speed")

    def freeze(self, frozen: bool) -> None:
        """Stop or go on with every process of the group; returns when done."""
        if self.version == 1:
            path, word = self.folders["freezer"] / "freezer.state", "FROZEN" if frozen else "THAWED"
        else:
            path, word = self.folders["freezer"] / "cgroup.freeze", "1" if frozen else "0"
        path.write_text(word)
        deadline = time.monotonic() + 2
        while path.read_text().strip() != word:
            if time.monotonic() > deadline:
                raise ClusterError(f"control group {path.parent.name} did not reach state {word}")
            time.sleep(0.001)

    def set_limits(self, limits: Limits) -> None:
        memory = str(limits.memory_mb * 2**20)
        if self.version == 1:
            (self.folders["memory"] / "memory.limit_in_bytes").write_text(memory)
        else:
            (self.folders["memory"] / "memory.max").write_text(memory)
            with contextlib.suppress(OSError):
                (self.folders["memory"] / "memory.swap.max").write_text("0")
        (self.folders["pids"] / "pids.max").write_text(str(limits.pids))
        if limits.cpus is not None:
            self.set_cpus(limits.cpus)

    def remove(self) -> None:
        for folder in set(self.folders.values()):
            remove_cgroup(folder)


def version() -> int:
    """2 for a unified hierarchy, 1 for separate controllers, 0 where there is neither."""
    if (_ROOT / "cgroup.controllers").exists():
        return 2
    return 1 if all((_ROOT / name).is_dir() for name in _V1_CONTROLLERS) else 0


def usable() -> bool:
    """Whether this process may make control groups (root of the machine, writable mount)."""
    found = version()
    if found == 0:
        return False
    parent = _ROOT if found == 2 else _ROOT / "cpu"
    trial = parent / f"distlab-trial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def create(name: str, record: Callable[[str], None], *, disk: bool = False) -> HostCgroup:
    """Make the control groups `distlab-NAME`, telling `record` of each before it is made.

    disk: one that can limit a disk's speed among them, where the kernel has it.
    """
    found = version()
    if found == 1:
        wanted_ones = [*_V1_CONTROLLERS]
        wanted_ones += ["blkio"] if disk and (_ROOT / "blkio").is_dir() else []
        folders = {c: _ROOT / c / f"distlab-{name}" for c in wanted_ones}
    else:
        unified = _ROOT / f"distlab-{name}"
        folders = dict.fromkeys(_V1_CONTROLLERS, unified)
        wanted = "+cpu +memory +pids +io" if disk else "+cpu +memory +pids"
        with contextlib.suppress(OSError):
            (_ROOT / "cgroup.subtree_control").write_text(wanted)
    for folder in set(folders.values()):
        record(str(folder))
        folder.mkdir()
    return HostCgroup(found, folders)
