"""The bridges and cables of one switch, in any kernel. Host i, whose interface is `port`:

port -- br<i> -- up<i> | core<i> -- core -- core<j> | up<j> -- br<j> -- port
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.network import filters, links
from cluster.network.errors import EngineError
from cluster.network.netlink import NetlinkRefused
from cluster.network.paths import Path
from cluster.network.qdiscs import PRIO_BANDS, Place

_SETTLE_S = 5.0
MAX_PORTS = PRIO_BANDS - 1  # the first band carries what no link fault applies to


class Channel(Protocol):
    """A way to the rtnetlink of the kernel that switches."""

    def exchange(self, requests: Sequence[bytes]) -> list[bytes]:
        """Carry out requests in order and return the answers.

        Raises NetlinkRefused at the first one refused, EngineError when the kernel is gone.
        """


def settle(channel: Channel, names: Iterable[str]) -> None:
    """Wait until veths carry packets: a kernel drops them until it has noted the other end.

    A host's own `data0` needs this as much as the port that it is plugged into. Raises
    EngineError after 5 s, NetlinkRefused for an interface that is not there.
    """
    deadline = time.monotonic() + _SETTLE_S
    for name in names:
        while links.decode_link(channel.exchange([links.get_link(name)])[0]).waking:
            if time.monotonic() > deadline:
                raise EngineError(f"interface {name} does not come up")
            time.sleep(0.001)


def host_mac(host: int) -> bytes:
    """The address of host `host`'s data interface, by which the switch knows its packets."""
    return bytes((0x02, 0xD1, 0x57, 0, 0, host + 1))


@dataclass(frozen=True)
class Slot:
    """Where the fault of one path goes; `keys` choose its packets where it shares an interface."""

    place: Place
    keys: tuple[filters.Key, ...] = ()


class Fabric:
    """Ports, bridges and cables. Raises EngineError when the kernel refuses or is gone."""

    def __init__(self, channel: Channel, ports: int, mtu: int) -> None:
        if not 1 <= ports <= MAX_PORTS:
            raise ValueError(f"a switch of {ports} ports; valid: 1 to {MAX_PORTS}")
        self.ports = ports
        self.index: dict[str, int] = {}
        """Interface numbers by name."""
        self.plugged: dict[int, int] = {}
        """Interface number of each port that a host is plugged into."""
        self._channel = channel
        self.mtu = mtu

    def build(self) -> None:
        """Create bridges and cables, and set them up."""
        requests = [links.add_bridge("core", self.mtu)]
        for port in range(self.ports):
            requests.append(links.add_bridge(f"br{port}", self.mtu))
            requests.append(links.add_veth(f"up{port}", f"core{port}", self.mtu))
        self.exchange(requests)
        self.refresh()
        self.join("core")
        for port in range(self.ports):
            self.join(f"br{port}")
            self.join(f"up{port}", f"br{port}")
            self.join(f"core{port}", "core")
            # Else the first packets to a host would be flooded, and counted, at all the others.
            self.exchange([links.pin_address(self.index[f"core{port}"], host_mac(port))])
        ends = [f"{kind}{port}" for port in range(self.ports) for kind in ("up", "core")]
        settle(self._channel, ends)

    def slot(self, path: Path) -> Slot | None:
        """Where the fault of a path goes; None while the host it leads into is not plugged in."""
        if path.dst is None:
            return Slot(Place(self.index[f"up{path.src}"]))
        if path.src is None:
            index = self.plugged.get(path.dst)
            return None if index is None else Slot(Place(index))
        place = Place(self.index[f"core{path.dst}"], band=path.src + 2)
        return Slot(place, filters.from_host(host_mac(path.src)))

    def refresh(self) -> None:
        """Learn the numbers of interfaces that came up since."""
        listing = self.exchange([links.list_links()])
        self.index = {link.name: link.index for link in map(links.decode_link, listing)}

    def join(self, name: str, bridge: str | None = None) -> int:
        """Set an interface up, silent, as a port of a bridge or of none; return its number."""
        index = self.index.get(name)
        try:
            if index is None:
                found = self._channel.exchange([links.get_link(name)])[0]
                index = self.index[name] = links.decode_link(found).index
        except NetlinkRefused as refusal:
            raise EngineError(f"the switch has no interface {name}") from refusal
        master = self.index[bridge] if bridge else 0
        try:
            self._channel.exchange([links.silence(index)])
        except NetlinkRefused as refusal:
            if refusal.errno != errno.EAFNOSUPPORT:  # a kernel without IPv6 is silent anyway
                raise EngineError(f"a port cannot be configured: {refusal.strerror}") from refusal
        self.exchange([links.set_link(index, up=True, mtu=self.mtu, master=master)])
        return index

    def attach(self, port: int, ifname: str) -> None:
        """Make the interface `ifname` the way to host `port`."""
        self.check_port(port)
        self.plugged[port] = self.join(ifname, f"br{port}")
        del self.index[ifname]  # it goes when its host likes, and the next one may take its name
        settle(self._channel, [ifname])

    def detach(self, port: int) -> int | None:
        """Take the interface of `port` off its bridge; return its number if it still exists."""
        self.check_port(port)
        index = self.plugged.pop(port, None)
        if index is None:
            return None
        try:
            self._channel.exchange([links.set_link(index, up=False, master=0)])
        except NetlinkRefused:
            return None  # its host's namespace has gone, and the interface with it
        return index

    def check_port(self, port: int) -> None:
        """Raise ValueError for a host that the switch has no port for."""
        if not 0 <= port < self.ports:
            raise ValueError(f"host {port} of a switch; valid: 0 to {self.ports - 1}")

    def exchange(self, requests: Sequence[bytes]) -> list[bytes]:
        """Carry out requests in order. Raises EngineError."""
        if not requests:
            return []
        try:
            return self._channel.exchange(requests)
        except NetlinkRefused as refusal:
            raise EngineError(
                f"the switch's kernel refused request {refusal.position + 1} of {len(requests)}: "
                f"{refusal.strerror}"
            ) from refusal
