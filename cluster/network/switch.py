"""The faults in force on a fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cluster.network import filters, qdiscs
from cluster.network.fabric import Fabric, Slot
from cluster.network.netem import NO_FAULT, Netem
from cluster.network.paths import Path
from cluster.network.qdiscs import Place


class Switch:
    """The faults of one switch. Not safe for use by several threads at once.

    Raises EngineError from every method when the kernel refuses or is gone.
    """

    def __init__(
        self, fabric: Fabric, put: Callable[[Place, Netem], bytes] = qdiscs.put_netem
    ) -> None:
        """`put` makes the qdisc for a fault; it must change one in place that exists already."""
        self._fabric = fabric
        self._put = put
        self._rules: dict[Path, Netem] = {}
        self._draining: set[Path] = set()

    def attach(self, port: int, ifname: str) -> None:
        """Make the interface `ifname` the way to host `port`, with the faults in force."""
        self._fabric.attach(port, ifname)
        downlink = Path(None, port)
        if downlink in self._rules:
            self._fabric.exchange(self._placement(downlink, self._rules[downlink], set()))

    def detach(self, port: int) -> None:
        """Take the interface of `port` off, if it still exists."""
        downlink = Path(None, port)
        with_qdisc = downlink in self._rules or downlink in self._draining
        self._draining.discard(downlink)
        index = self._fabric.detach(port)
        if index is not None and with_qdisc:
            self._fabric.exchange([qdiscs.delete_qdisc(Place(index))])

    def apply(self, rules: Mapping[Path, Netem]) -> None:
        """Make `rules` the complete set in force, touching only what differs.

        A fault that may hold packets is healed by one that lets them out in their time; the empty
        qdisc is swept away by a later call.
        """
        wanted = {path: fault for path, fault in rules.items() if fault != NO_FAULT}
        for path in wanted:
            for end in (path.src, path.dst):
                if end is not None:
                    self._fabric.check_port(end)
        self._sweep()
        requests: list[bytes] = []
        present = {*self._rules, *self._draining}
        removed = []
        for path in self._rules.keys() - wanted.keys():
            old, slot = self._rules[path], self._fabric.slot(path)
            if old.holds_packets and slot:
                healed = replace(NO_FAULT, limit_packets=old.queue_limit)
                requests.append(self._put(slot.place, healed))
                self._draining.add(path)
            else:
                removed.append(path)
        requests += self._removal(removed, present)
        present -= set(removed)
        # Changed ones first: the kernel takes no new netem beside one that duplicates.
        for path, fault in sorted(wanted.items(), key=lambda item: item[0] not in present):
            if self._rules.get(path) != fault:
                requests += self._placement(path, fault, present)
                present.add(path)
        self._rules = wanted
        self._draining -= wanted.keys()
        self._fabric.exchange(requests)

    def read_back(self) -> dict[Path, Netem]:
        """The faults that the kernel reports, leaving out qdiscs that change nothing."""
        hosts = range(self._fabric.ports)
        paths = [Path(i, None) for i in hosts] + [Path(None, i) for i in hosts]
        paths += [Path(i, j) for i in hosts for j in hosts if i != j]
        slots = ((self._fabric.slot(path), path) for path in paths)
        by_place = {slot.place: path for slot, path in slots if slot}
        found = {}
        for qdisc in self._qdiscs():
            fault = qdisc.fault
            if fault and replace(fault, limit_packets=None) != NO_FAULT:
                found[by_place[qdisc.place]] = fault
        return found

    def _qdiscs(self) -> list[qdiscs.Qdisc]:
        answers = self._fabric.exchange([qdiscs.list_qdiscs()])
        return [qdiscs.decode_qdisc(answer) for answer in answers]

    def _sweep(self) -> None:
        """Remove the qdiscs of healed faults that have let their last packet out."""
        if not self._draining:
            return
        waiting = {qdisc.place: qdisc.waiting for qdisc in self._qdiscs()}
        empty = []
        for path in self._draining:
            slot = self._fabric.slot(path)
            if slot is None or not waiting.get(slot.place):
                empty.append(path)
        requests = self._removal(empty, {*self._rules, *self._draining})
        self._draining -= set(empty)
        self._fabric.exchange(requests)

    def _placement(self, path: Path, fault: Netem, present: set[Path]) -> list[bytes]:
        slot = self._fabric.slot(path)
        if slot is None:
            return []
        put = self._put(slot.place, fault)
        if not slot.keys or path in present:
            return [put]
        bands = [] if self._shares(slot, present) else [qdiscs.put_bands(slot.place.index)]
        return [*bands, put, filters.put_band_filter(slot.place, slot.keys)]

    def _removal(self, paths: list[Path], present: set[Path]) -> list[bytes]:
        requests = []
        staying = present - set(paths)
        bare: set[int] = set()
        for path in paths:
            slot = self._fabric.slot(path)
            if slot is None:
                continue
            if not slot.keys:
                requests.append(qdiscs.delete_qdisc(slot.place))
            elif self._shares(slot, staying):
                requests.append(filters.delete_band_filter(slot.place))
                requests.append(qdiscs.delete_qdisc(slot.place))
            elif slot.place.index not in bare:
                bare.add(slot.place.index)
                requests.append(qdiscs.delete_qdisc(Place(slot.place.index)))
        return requests

    def _shares(self, slot: Slot, paths: set[Path]) -> bool:
        """Whether any of the paths has its fault in a band of the same interface."""
        others = (self._fabric.slot(path) for path in paths)
        return any(o and o.keys and o.place.index == slot.place.index for o in others)
