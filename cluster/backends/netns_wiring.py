"""The networks of emulated hosts: a control bridge that reaches the head, a plain data bridge."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

from cluster import linux
from cluster.network import addresses, links
from cluster.network.counters import disable_offload
from cluster.network.fabric import settle
from cluster.network.kernel import NamespaceChannel
from cluster.network.namespaces import current_netns, in_netns, new_netns
from cluster.network.netlink import NetlinkRefused

CONTROL_SUBNET, DATA_SUBNET = "10.78.0", "10.77.0"
HEAD_CONTROL_ADDRESS = f"{CONTROL_SUBNET}.254"
_CONTROL_BRIDGE, _DATA_BRIDGE = "ctl", "data"
_NAMED = Path("/run/netns")
_CONTROL_MTU = 1500
# Jumbo frames, as training clusters use them; a sixth of the packets, and of the time they cost.
DATA_MTU = 9000


def control_address(index: int) -> str:
    """Address of host `index` on the launcher's network."""
    return f"{CONTROL_SUBNET}.{index + 1}"


def data_address(index: int) -> str:
    """Address of host `index` on the job's network."""
    return f"{DATA_SUBNET}.{index + 1}"


def data_mac(index: int) -> str:
    """Ethernet address of host `index` on the job's network."""
    return f"02:d1:57:00:00:{index + 1:02x}"


class Wiring:
    """The enclosure's bridges and the links from them to hosts."""

    _serial = itertools.count()  # one for all: links of another wiring's hosts may linger here

    def __init__(self) -> None:
        _NAMED.mkdir(exist_ok=True)
        self._here = current_netns()
        self._channel = NamespaceChannel(self._here)
        self._ports: dict[str, list[int]] = {}
        """By host: numbers of the interfaces here that lead to it."""
        for bridge, mtu in ((_CONTROL_BRIDGE, _CONTROL_MTU), (_DATA_BRIDGE, DATA_MTU)):
            with contextlib.suppress(NetlinkRefused):
                self._channel.exchange([links.delete_link(self._channel.index(bridge))])
            self._channel.exchange([links.add_bridge(bridge, mtu)])
            index = self._channel.index(bridge)
            requests = [links.silence(index), links.set_link(index, up=True)]
            if bridge == _CONTROL_BRIDGE:
                requests.insert(0, addresses.add_address(index, HEAD_CONTROL_ADDRESS, 24))
            self._channel.exchange(requests)

    def close(self) -> None:
        self._channel.close()
        os.close(self._here)

    def connect(self, name: str, index: int, hosts: int, switch: int | None) -> str:
        """Make the network namespace of host `index` of `hosts`, with ctl0 and data0 in it.

        Returns the name of data0's other end, which lies in the namespace of `switch`, an open
        file, and is not connected to anything yet; without a switch it is on the bridge here that
        has no faults. The names are new ones: the kernel removes those of earlier hosts when it
        likes.
        """
        self.disconnect(name)
        serial, namespace = next(self._serial), new_netns()
        inside = NamespaceChannel(namespace)
        control, data = f"c{serial}", f"p{serial}"
        mac = f"02:d1:58:00:00:{index + 1:02x}"
        outside = self._here if switch is None else switch
        try:
            self._publish(name, namespace)
            inside.exchange(
                [
                    addresses.add_veth_out_to(self._here, control, "ctl0", mac, _CONTROL_MTU),
                    addresses.add_veth_out_to(outside, data, "data0", data_mac(index), DATA_MTU),
                ]
            )
            port = self._join(name, control, _CONTROL_BRIDGE)
            self._channel.exchange([addresses.isolate_port(port)])
            if switch is None:
                self._join(name, data, _DATA_BRIDGE)
            _address_inside(inside, index, hosts)
        finally:
            inside.close()
            os.close(namespace)
        return data

    def finish(self, name: str, *, count_packets: bool) -> None:
        """Wait until a host's links carry packets.

        count_packets: let one packet be one packet, not 64 kB of them, where they are lost or
        counted.
        """
        namespace = in_netns(name, current_netns)
        channel = NamespaceChannel(namespace)
        try:
            settle(channel, ["ctl0", "data0"])
            if count_packets:
                disable_offload(namespace, "data0")
        finally:
            channel.close()
            os.close(namespace)

    def disconnect(self, name: str) -> None:
        """Forget the named namespace of a host; its links go with its last process."""
        for port in self._ports.pop(name, ()):
            # While it is still there, the bridge would send it what is for the next host.
            with contextlib.suppress(NetlinkRefused):
                self._channel.exchange([links.set_link(port, up=False, master=0)])
        path = _NAMED / name
        if path.exists():
            with contextlib.suppress(OSError):
                linux.unmount(str(path))
            path.unlink(missing_ok=True)

    def _publish(self, name: str, namespace: int) -> None:
        path = _NAMED / name
        path.touch()
        linux.mount(f"/proc/self/fd/{namespace}", str(path), "", linux.MS_BIND)

    def _join(self, name: str, ifname: str, bridge: str) -> int:
        """Put an interface that leads to host `name` on a bridge; return its number."""
        port, master = self._channel.index(ifname), self._channel.index(bridge)
        self._ports.setdefault(name, []).append(port)
        requests = [links.silence(port), links.set_link(port, master=master, up=True)]
        self._channel.exchange(requests)
        return port


def _address_inside(inside: NamespaceChannel, index: int, hosts: int) -> None:
    number = {n: inside.index(n) for n in ("lo", "ctl0", "data0")}
    requests = [
        links.silence(number["ctl0"]),
        links.silence(number["data0"]),
        addresses.add_address(number["ctl0"], control_address(index), 24),
        addresses.add_address(number["data0"], data_address(index), 24),
        *(links.set_link(n, up=True) for n in number.values()),
    ]
    # A full neighbour table: no address lookup is delayed by a fault, or counted.
    requests += [
        addresses.add_neighbour(number["data0"], data_address(other), data_mac(other))
        for other in range(hosts)
        if other != index
    ]
    inside.exchange(requests)
