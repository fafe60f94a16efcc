"""Whether the host kernel can do its half of the UML engine: bridges, filters, rates, a tap."""

from __future__ import annotations

import fcntl
import os
import struct
from functools import partial

from cluster.network import qdiscs
from cluster.network.fabric import Fabric
from cluster.network.kernel import NamespaceChannel
from cluster.network.namespaces import in_netns, new_netns
from cluster.network.netem import Netem
from cluster.network.paths import Path
from cluster.network.steering import TRUNK, Steering
from cluster.network.switch import Switch

_MAKE_INTERFACE = 0x400454CA
_TAP_WITHOUT_HEADER = 0x1002


def try_host_side() -> None:
    """Build the host's half in a scratch namespace. Raises EngineError, OSError."""
    netns = new_netns()
    try:
        tap = in_netns(netns, _open_trunk)
        channel = NamespaceChannel(netns)
        try:
            fabric = Fabric(channel, ports=2, mtu=1500)
            fabric.build()
            steering = Steering(fabric)
            steering.build()
            steering.apply([Path(0, 1)])
            shapers = Switch(fabric, put=partial(qdiscs.put_shaper, mtu=1500))
            shapers.apply({Path(0, None): Netem(rate_mbit=100)})
        finally:
            channel.close()
            os.close(tap)
    finally:
        os.close(netns)


def _open_trunk() -> int:
    opened = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    request = struct.pack("16sH22x", TRUNK.encode(), _TAP_WITHOUT_HEADER)
    try:
        fcntl.ioctl(opened, _MAKE_INTERFACE, request)
    except OSError:
        os.close(opened)
        raise
    return opened
