"""The networks of emulated hosts: a control bridge that reaches the head, a plain data bridge."""

from __future__ import annotations

import contextlib
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


def data_port(index: int) -> str:
    """Name, on the switch's side, of the link to host `index`."""
    return f"p{index}"


class Wiring:
    """The enclosure's bridges and the links from them to hosts."""

    def __init__(self) -> None:
        _NAMED.mkdir(exist_ok=True)
        here = current_netns()
        self._channel = NamespaceChannel(here)
        os.close(here)
        for bridge, mtu in ((_CONTROL_BRIDGE, _CONTROL_MTU), (_DATA_BRIDGE, DATA_MTU)):
            self._remove(bridge)
            self._channel.exchange([links.add_bridge(bridge, mtu)])
            index = self._index(bridge)
            requests = [links.silence(index), links.set_link(index, up=True)]
            if bridge == _CONTROL_BRIDGE:
                requests.insert(0, addresses.add_address(index, HEAD_CONTROL_ADDRESS, 24))
            self._channel.exchange(requests)

    def close(self) -> None:
        self._channel.close()

    def connect(self, name: str, index: int, hosts: int) -> str:
        """Make the network namespace of host `index` of `hosts`, with ctl0 and data0 in it.

        Returns the name of data0's other end, which is not connected to anything yet.
        """
        self.disconnect(name)
        namespace = new_netns()
        try:
            self._publish(name, namespace)
            control, data = f"c{index}", data_port(index)
            self._remove(control)
            self._remove(data)
            mac = f"02:d1:58:00:00:{index + 1:02x}"
            self._channel.exchange(
                [
                    addresses.add_veth_into(control, "ctl0", mac, _CONTROL_MTU, namespace),
                    addresses.add_veth_into(data, "data0", data_mac(index), DATA_MTU, namespace),
                ]
            )
            number = self._index(control)
            self._channel.exchange(
                [
                    links.silence(number),
                    links.set_link(number, master=self._index(_CONTROL_BRIDGE), up=True),
                    addresses.isolate_port(number),
                    links.silence(self._index(data)),
                ]
            )
            self._address_inside(namespace, index, hosts)
        finally:
            os.close(namespace)
        return data

    def join_plain_data(self, ifname: str) -> None:
        """Put a host's data link on the bridge that has no faults."""
        number = self._index(ifname)
        bridge = self._index(_DATA_BRIDGE)
        self._channel.exchange([links.set_link(number, master=bridge, up=True)])

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
        path = _NAMED / name
        if path.exists():
            with contextlib.suppress(OSError):
                linux.unmount(str(path))
            path.unlink(missing_ok=True)

    def _publish(self, name: str, namespace: int) -> None:
        path = _NAMED / name
        path.touch()
        linux.mount(f"/proc/self/fd/{namespace}", str(path), "", linux.MS_BIND)

    def _address_inside(self, namespace: int, index: int, hosts: int) -> None:
        channel = NamespaceChannel(namespace)
        try:
            number = {n: _index(channel, n) for n in ("lo", "ctl0", "data0")}
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
            channel.exchange(requests)
        finally:
            channel.close()

    def _index(self, ifname: str) -> int:
        return _index(self._channel, ifname)

    def _remove(self, ifname: str) -> None:
        with contextlib.suppress(NetlinkRefused):
            self._channel.exchange([links.delete_link(self._index(ifname))])


def _index(channel: NamespaceChannel, ifname: str) -> int:
    return links.decode_link(channel.exchange([links.get_link(ifname)])[0]).index
