"""Engine for a kernel that has netem: the switch is a network namespace of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from cluster.network import links
from cluster.network.errors import EngineError
from cluster.network.fabric import Fabric
from cluster.network.namespaces import in_netns, new_netns
from cluster.network.netem import Netem
from cluster.network.netlink import converse, open_route_socket, split
from cluster.network.paths import Path
from cluster.network.switch import Switch


class NamespaceChannel:
    """rtnetlink of a network namespace of this kernel."""

    def __init__(self, netns: int) -> None:
        """`netns` is an open namespace file. Raises OSError."""
        self._socket = in_netns(netns, open_route_socket)

    def exchange(self, requests: Sequence[bytes]) -> list[bytes]:
        """Carry out requests in order. Raises NetlinkRefused."""
        return list(split(converse(self._socket, b"".join(requests))))

    def index(self, ifname: str) -> int:
        """The number of an interface. Raises NetlinkRefused when there is none of that name."""
        return links.decode_link(self.exchange([links.get_link(ifname)])[0]).index

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


class KernelEngine:
    """Faults by the netem of the running kernel."""

    name = "kernel"

    def __init__(self, mtu: int = 9000) -> None:
        """`mtu` in bytes is the largest packet that the switch passes."""
        self._mtu = mtu
        self._lock = threading.Lock()
        self._netns: int | None = None
        self._channel: NamespaceChannel
        self._switch: Switch

    def start(self, ports: int) -> None:
        """Make the switch. Raises EngineError, ValueError for a wrong number of ports."""
        if self._netns is not None:
            raise EngineError("the switch has been started already")
        try:
            self._netns = new_netns()
            self._channel = NamespaceChannel(self._netns)
        except OSError as error:
            raise EngineError(f"no network namespace can be made: {error}") from error
        fabric = Fabric(self._channel, ports, self._mtu)
        fabric.build()
        self._switch = Switch(fabric)

    @property
    def netns(self) -> int:
        """An open file that stands for the switch's namespace. Raises EngineError."""
        self._started()
        assert self._netns is not None
        return self._netns

    def wait_ready(self, timeout_s: float) -> None:
        """Return at once: this switch is ready when `start` returns."""
        self._started()

    def plug(self, port: int, ifname: str) -> None:
        """Connect an interface of the switch's namespace to a port. Raises EngineError."""
        with self._lock:
            self._started().attach(port, ifname)

    def unplug(self, port: int) -> None:
        """Disconnect a port; its interface may have gone already."""
        with self._lock:
            if self._netns is None:
                return  # nothing was ever plugged in
            self._switch.detach(port)

    def apply(self, rules: Mapping[Path, Netem]) -> None:
        """Make `rules` the complete set of faults. Raises EngineError."""
        with self._lock:
            self._started().apply(rules)

    def read_back(self) -> Mapping[Path, Netem]:
        """The faults as the kernel reports them. Raises EngineError."""
        with self._lock:
            return self._started().read_back()

    def alive(self) -> bool:
        """Whether the switch still answers."""
        try:
            self.read_back()
        except (EngineError, OSError):
            return False
        return True

    def stop(self) -> None:
        """Remove the switch. Does nothing when it was never started."""
        with self._lock:
            if self._netns is None:
                return
            self._channel.close()
            os.close(self._netns)
            self._netns = None

    def _started(self) -> Switch:
        if self._netns is None:
            raise EngineError("the switch is not running: call start() first")
        return self._switch


class PlainEngine(KernelEngine):
    """A switch for machines where nothing serves faults: it connects hosts and refuses rules."""

    name = "none"

    def __init__(self, reason: str, mtu: int = 9000) -> None:
        """`reason` says why there are no faults."""
        super().__init__(mtu)
        self.reason = reason

    def apply(self, rules: Mapping[Path, Netem]) -> None:
        """Do nothing when there is nothing to do. Raises EngineError for any fault."""
        if rules:
            raise EngineError(f"no network faults here: {self.reason}")
