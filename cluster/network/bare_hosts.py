"""Hosts reduced to a network namespace with its `data0`: for trying an engine without sandboxes."""

from __future__ import annotations

import contextlib
import os
import socket
from types import TracebackType
from typing import Self

from cluster import linux
from cluster.network import addresses, links
from cluster.network.counters import disable_offload
from cluster.network.engine import Engine
from cluster.network.fabric import host_mac, settle
from cluster.network.kernel import NamespaceChannel
from cluster.network.namespaces import in_netns, new_netns
from cluster.network.netlink import NetlinkRefused

_PREFIX = 24


class BareHosts:
    """Hosts 0 to `count` - 1, plugged into a ready engine; gone at the end of the `with` block."""

    def __init__(
        self, engine: Engine, count: int, *, mtu: int = 1500, offload: bool = False
    ) -> None:
        """`mtu` in bytes; `offload` leaves segmentation offload on."""
        self._engine = engine
        self.netns = [self._make(host, count, mtu, offload) for host in range(count)]
        """An open namespace file for each host."""

    @staticmethod
    def address(host: int) -> str:
        """IPv4 address of a host's `data0`."""
        return f"10.77.0.{host + 1}"

    def socket(self, host: int, kind: socket.SocketKind) -> socket.socket:
        """An internet socket that lies inside a host."""
        return in_netns(self.netns[host], lambda: socket.socket(socket.AF_INET, kind))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host, netns in enumerate(self.netns):
            self._engine.unplug(host)
            # A forgotten socket would keep the namespace, and so the cable, alive.
            inside = NamespaceChannel(netns)
            with contextlib.suppress(NetlinkRefused):
                inside.exchange([links.delete_link(inside.index("data0"))])
            inside.close()
            os.close(netns)

    def _make(self, host: int, count: int, mtu: int, offload: bool) -> int:
        netns, outside, mac = new_netns(), f"p{host}", host_mac(host).hex(":")
        inside, switch = NamespaceChannel(netns), self._engine.netns
        inside.exchange([addresses.add_veth_out_to(switch, outside, "data0", mac, mtu)])
        data = inside.index("data0")
        in_netns(netns, linux.bring_up_loopback)
        with contextlib.suppress(NetlinkRefused):  # a kernel without IPv6
            inside.exchange([links.silence(data)])
        inside.exchange(
            [
                links.set_link(data, up=True),
                addresses.add_address(data, self.address(host), _PREFIX),
            ]
            + [
                addresses.add_neighbour(data, self.address(other), host_mac(other).hex(":"))
                for other in range(count)
                if other != host
            ]
        )
        if not offload:
            disable_offload(netns, "data0")
            disable_offload(switch, outside)
        self._engine.plug(host, outside)
        settle(inside, ["data0"])
        inside.close()
        return netns
