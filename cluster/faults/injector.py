"""Put faults into force on a cluster, prove that they are, and lift them again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from cluster.faults.language import Fault, HostFault, Impair, Partition
from cluster.interface import Cluster, ClusterError, Unfit
from cluster.network.netem import CUT, Netem
from cluster.network.paths import Path, partition


@dataclass(frozen=True)
class Applied:
    """A fault that was in force. start, end: monotonic seconds; end None: still is."""

    fault: Fault
    start: float
    end: float | None
    proof: str


class Injector:
    """Holds the faults in force on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._network = cluster, cluster.network
        self._names = [host.name for host in cluster.hosts]
        self._active: list[Fault] = []
        self._history: list[Applied] = []
        self._lock = threading.Lock()

    def apply(self, *faults: Fault, idle: bool = True) -> None:
        """Put `faults` into force now, beside those that are. Raises Unfit if one does not take.

        idle: no job is sending, so that the proof may look at all packets. Faults of the network
        that are given together are proven together.
        """
        with self._lock:
            self._active += faults
            began = time.monotonic()
            proofs = {
                fault: self._host_fault(fault.action)
                for fault in faults
                if isinstance(fault.action, HostFault)
            }
            if len(proofs) < len(faults):
                proof = self._impose(idle)
                proofs |= {fault: proof for fault in faults if fault not in proofs}
            self._history += [Applied(fault, began, None, proofs[fault]) for fault in faults]

    def lift(self, fault: Fault) -> None:
        """End `fault`. A killed host stays down. Raises Unfit."""
        with self._lock:
            self._active.remove(fault)
            if isinstance(fault.action, HostFault):
                self._end_host_fault(fault.action)
            else:
                self._impose(idle=False)
            now = time.monotonic()
            self._history = [
                replace(a, end=now) if a.fault is fault and a.end is None else a
                for a in self._history
            ]

    def heal(self) -> None:
        """Lift every fault in force."""
        for fault in list(self._active):
            self.lift(fault)

    def history(self) -> tuple[Applied, ...]:
        """Every fault that was put into force, oldest first."""
        return tuple(self._history)

    def active(self) -> tuple[Fault, ...]:
        return tuple(self._active)

    def _impose(self, idle: bool) -> str:
        if self._network is None:
            raise Unfit("this cluster was made without network faults")
        return self._network.impose(rules_of(self._active, self._names), idle=idle)

    def _host_fault(self, action: HostFault) -> str:
        host = self._cluster.host(action.host)
        if action.kind == "kill":
            host.kill()
            if host.alive():
                raise Unfit(f"{host.name} was killed and still runs")
            return f"{host.name} has no process left"
        if action.kind == "pause":
            host.pause()
            return f"{host.name} stands still"
        if action.kind == "cpus":
            host.set_cpus(action.value)
            return f"{host.name} may use {action.value:g} processors"
        if action.kind == "slow disk":
            return host.slow_disk(action.value)
        host.fill_disk()
        return f"{host.name} has no free block left"

    def _end_host_fault(self, action: HostFault) -> None:
        host = self._cluster.host(action.host)
        if action.kind == "pause":
            host.resume()
        elif action.kind == "cpus":
            host.set_cpus(None)
        elif action.kind == "fill disk":
            host.free_disk()
        elif action.kind == "slow disk":
            host.slow_disk(None)


class TimelineRun:
    """Applies and lifts faults at their times after the start of the block. A context manager.

    Leaving the block lifts what is still in force, and raises ClusterError if a fault could not be
    put into force or lifted in its time.
    """

    def __init__(self, injector: Injector, faults: Iterable[Fault]) -> None:
        self._injector = injector
        self._faults = tuple(faults)
        self._stop = threading.Event()
        self._trouble: ClusterError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TimelineRun:
        self._zero = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._left = time.monotonic()
        self._stop.set()
        self._thread.join()
        for fault in self._injector.active():
            if fault in self._faults:
                self._injector.lift(fault)
        interrupted = kind is not None and not issubclass(kind, Exception)
        if self._trouble is not None and not interrupted:
            raise self._trouble

    def must_have_fired(self) -> None:
        """Raise Unfit unless every fault of the timeline was put into force. Call it once the
        answers have been compared: a submission that ends early and wrong is wrong."""
        fired = [applied.fault for applied in self._injector.history()]
        for fault in self._faults:
            if fault not in fired:
                raise Unfit(f"`{fault.text}` did not fire: the job had ended before")
            if fault.end is not None and self._left < self._zero + fault.end:
                raise Unfit(f"`{fault.text}` was cut short: the job had ended before it healed")

    def _run(self) -> None:
        events = [(fault.start, True, fault) for fault in self._faults]
        events += [(f.end, False, f) for f in self._faults if f.end is not None]
        for at, begins, fault in sorted(events, key=lambda event: (event[0], event[1])):
            if self._stop.wait(max(0.0, self._zero + at - time.monotonic())):
                return
            try:
                if begins:
                    self._injector.apply(fault, idle=False)
                else:
                    self._injector.lift(fault)
            except ClusterError as error:
                self._trouble = error
                return


def rules_of(faults: Iterable[Fault], names: list[str]) -> dict[Path, Netem]:
    """The netem rules that a set of faults amounts to.

    "on all" impairs each path once: delays and losses on the way into a host, rates both ways.
    """
    rules: dict[Path, Netem] = {}
    for fault in faults:
        if isinstance(fault.action, Partition):
            groups = [[names.index(name) for name in group] for group in fault.action.groups]
            for path in partition(groups):
                rules[path] = CUT
        elif isinstance(fault.action, Impair):
            for path, netem in _paths(fault.action, names).items():
                rules[path] = merge(rules[path], netem) if path in rules else netem
    return rules


def _paths(action: Impair, names: list[str]) -> dict[Path, Netem]:
    kind, netem = action.target.kind, action.netem
    indices = [names.index(name) for name in action.target.hosts]
    if kind == "link":
        return {Path(indices[0], indices[1]): netem}
    if kind == "uplink":
        return {Path(indices[0], None): netem}
    if kind == "downlink":
        return {Path(None, indices[0]): netem}
    if kind == "host":
        return {Path(indices[0], None): netem, Path(None, indices[0]): netem}
    paths = {Path(None, index): netem for index in range(len(names))}
    if netem.rate_mbit is not None:
        rate_only = Netem(rate_mbit=netem.rate_mbit, limit_packets=netem.limit_packets)
        paths |= {Path(index, None): rate_only for index in range(len(names))}
    return paths


def merge(first: Netem, second: Netem) -> Netem:
    """Both impairments on one path: what the second sets replaces what the first set."""
    if CUT in (first, second):
        return CUT
    default = Netem()
    changed = {
        field.name: getattr(second, field.name)
        for field in fields(Netem)
        if getattr(second, field.name) != getattr(default, field.name)
    }
    with contextlib.suppress(ValueError):
        return replace(first, **changed)
    return second
