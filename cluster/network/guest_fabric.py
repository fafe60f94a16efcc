"""The guest kernel's fabric: all hosts share one interface, and are told apart by address.

vec0 --by source--> up<i> | core<i> -- core -- core<j> | up<j> --> vec0

out of i     root qdisc at up<i>
i -> j       leaf of a prio qdisc at core<j>, chosen by source address
into j       leaf of a prio qdisc at vec0, chosen by destination address
"""

from __future__ import annotations

from cluster.network import filters, links, qdiscs
from cluster.network.fabric import Fabric, Slot, host_mac, settle
from cluster.network.paths import Path
from cluster.network.qdiscs import Place

VEC = "vec0"
_GROUPS, _REST, _FIRST_HOST = 1, 2, 1


class GuestFabric(Fabric):
    """Ports, bridge and cables behind one trunk. Raises EngineError when the kernel refuses."""

    def build(self) -> None:
        """Create bridge and cables, and set them up."""
        requests = [links.add_bridge("core", self.mtu)]
        for port in range(self.ports):
            requests.append(links.add_veth(f"up{port}", f"core{port}", self.mtu))
        self.exchange(requests)
        self.refresh()
        self.join("core")
        vec = self.join(VEC)
        requests = [qdiscs.put_ingress(vec)]
        for port in range(self.ports):
            core, up = self.join(f"core{port}", "core"), self.join(f"up{port}")
            mac = host_mac(port)
            requests += [
                links.pin_address(core, mac),
                qdiscs.put_ingress(up),
                filters.put_redirect(vec, _FIRST_HOST + port, filters.from_host(mac), up),
                # The trunk's far end tells receivers apart by address, so a copy of a broadcast
                # leaves with that of its own receiver.
                filters.put_redirect(up, _GROUPS, filters.TO_A_GROUP, vec, readdress=mac),
                filters.put_redirect(up, _REST, filters.EVERYTHING, vec),
            ]
        self.exchange(requests)
        ends = [f"{kind}{port}" for port in range(self.ports) for kind in ("up", "core")]
        settle(self._channel, ends)

    def slot(self, path: Path) -> Slot | None:
        """Where the fault of a path goes."""
        if path.src is None and path.dst is not None:
            place = Place(self.index[VEC], band=path.dst + 2)
            return Slot(place, filters.to_host(host_mac(path.dst)))
        return super().slot(path)
