"""Sends packets through the guest kernel, and only those that have a fault to meet there.

    core<i> receives from host i  --chosen packets-->  trunk  (the guest switches)
    trunk receives for host j     --all-->             core<j>, on to host j

Whatever is not chosen goes on over the host kernel's own bridge, at native speed.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.network import filters, links, qdiscs
from cluster.network.fabric import Fabric, host_mac
from cluster.network.paths import Path

TRUNK = "trunk"
_TRUNK_PACKETS = 20_000
_ALL, _GROUPS, _FIRST_HOST = 1, 2, 3


class Steering:
    """Redirections of one fabric. Raises EngineError when the kernel refuses them."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._in_force: set[tuple[int, int]] = set()

    def build(self) -> None:
        """Connect what the guest sends. The trunk must exist in the fabric's kernel."""
        trunk = self._fabric.join(TRUNK)
        # UML may not get the processor for some tens of milliseconds; that must not lose packets.
        requests = [links.set_link(trunk, queue=_TRUNK_PACKETS), qdiscs.put_ingress(trunk)]
        for port in range(self._fabric.ports):
            core, to_host = self._fabric.index[f"core{port}"], filters.to_host(host_mac(port))
            requests.append(qdiscs.put_ingress(core))
            requests.append(filters.put_redirect(trunk, _FIRST_HOST + port, to_host, core))
        self._fabric.exchange(requests)

    def apply(self, paths: Iterable[Path]) -> None:
        """Make these the paths, and no others, that lead through the guest.

        Broadcasts of a host with any such path take it as well: the guest knows for each receiver
        whether it gets them.
        """
        wanted = self._priorities(set(paths))
        requests = []
        for port, priority in sorted(wanted - self._in_force):
            core, trunk = self._fabric.index[f"core{port}"], self._fabric.index[TRUNK]
            requests.append(filters.put_redirect(core, priority, _keys(priority), trunk))
        for port, priority in sorted(self._in_force - wanted):
            requests.append(filters.delete_redirect(self._fabric.index[f"core{port}"], priority))
        self._in_force = wanted
        self._fabric.exchange(requests)

    def _priorities(self, paths: set[Path]) -> set[tuple[int, int]]:
        chosen = set()
        for src in range(self._fabric.ports):
            if Path(src, None) in paths:
                chosen.add((src, _ALL))
                continue
            for dst in range(self._fabric.ports):
                if dst != src and paths & {Path(src, dst), Path(None, dst)}:
                    chosen |= {(src, _GROUPS), (src, _FIRST_HOST + dst)}
        return chosen


def _keys(priority: int) -> filters.Keys:
    if priority == _ALL:
        return filters.EVERYTHING
    if priority == _GROUPS:
        return filters.TO_A_GROUP
    return filters.to_host(host_mac(priority - _FIRST_HOST))
