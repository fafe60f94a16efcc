"""Measuring what the network does, on each engine that this machine can run."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cluster.network.bare_hosts import BareHosts
from cluster.network.counters import LinkMeter
from cluster.network.engine import Engine, availability
from cluster.network.kernel import KernelEngine
from cluster.network.namespaces import in_netns
from cluster.network.probe_sockets import open_datagram, receive_all
from cluster.network.uml import UmlEngine

HOSTS = 4
MTU = 9_000


class Measure:
    """Measurements between the hosts of one engine."""

    def __init__(self, engine: Engine, hosts: BareHosts) -> None:
        self.engine = engine
        self.hosts = hosts

    def delays_ms(self, src: int, dst: int, packets: int, every_s: float = 0.0) -> list[float]:
        """One-way delays by the kernel's arrival times, in order of arrival."""
        receiver = in_netns(self.hosts.netns[dst], lambda: open_datagram(self.hosts.address(dst)))
        sender = in_netns(self.hosts.netns[src], lambda: open_datagram(None))
        found: list[float] = []
        last = 0.0
        with receiver, sender:
            for _ in range(packets):
                sender.sendto(time.time_ns().to_bytes(8, "little"), receiver.getsockname())
                last = time.monotonic()
                time.sleep(every_s)
                found += _ages(receiver)
            while len(found) < packets and time.monotonic() < last + 1.0:
                time.sleep(0.001)
                found += _ages(receiver)
        return found

    def lost(self, src: int, dst: int, packets: int) -> int:
        """How many of so many small datagrams, in gentle bursts, do not arrive."""
        receiver = in_netns(self.hosts.netns[dst], lambda: open_datagram(self.hosts.address(dst)))
        sender = in_netns(self.hosts.netns[src], lambda: open_datagram(None))
        arrived = 0
        with receiver, sender:
            for number in range(packets):
                sender.sendto(b"x" * 64, receiver.getsockname())
                if number % 100 == 99:
                    time.sleep(0.001)
                    arrived += len(receive_all(receiver))
            deadline = time.monotonic() + 0.5
            while time.monotonic() < deadline and arrived < packets:
                time.sleep(0.005)
                arrived += len(receive_all(receiver))
        return packets - arrived

    def bulk_mbit(self, src: int, dst: int, seconds: float) -> float:
        """Mbit/s on the wire into `dst` under bulk TCP."""
        return self._wire_mbit(self._bulk(src, dst, seconds + 1.0), [dst], seconds)[0]

    def flood_mbit(
        self, pairs: list[tuple[int, int]], offered_mbit: float, seconds: float
    ) -> list[float]:
        """Mbit/s on the wire into each receiver, to which more datagrams are sent than that."""
        children = [
            _child(partial(_flood, self.hosts, src, dst, offered_mbit, seconds + 1.0))
            for src, dst in pairs
        ]
        return self._wire_mbit(children, [dst for _, dst in pairs], seconds)

    def _wire_mbit(self, children: list[int], receivers: list[int], seconds: float) -> list[float]:
        meters = [LinkMeter(self.hosts.netns[dst]) for dst in receivers]
        time.sleep(0.7)
        before, began = [meter.read("data0") for meter in meters], time.perf_counter()
        time.sleep(seconds)
        after, spent = [meter.read("data0") for meter in meters], time.perf_counter() - began
        for meter in meters:
            meter.close()
        for pid in children:
            os.waitpid(pid, 0)
        passed = [late - early for late, early in zip(after, before, strict=True)]
        return [one.rx_bytes * 8 / spent / 1e6 for one in passed]

    def _bulk(self, src: int, dst: int, seconds: float) -> list[int]:
        with self.hosts.socket(dst, socket.SOCK_STREAM) as door:
            door.bind((self.hosts.address(dst), 0))
            door.listen()
            sender = self.hosts.socket(src, socket.SOCK_STREAM)
            sender.connect(door.getsockname())
            receiver, _ = door.accept()
        with sender, receiver:
            return [
                _child(partial(_pour, sender, seconds)),
                _child(partial(_drink, receiver, seconds)),
            ]


def _ages(receiver: socket.socket) -> list[float]:
    return [
        (arrived - int.from_bytes(body, "little")) / 1e6 for body, arrived in receive_all(receiver)
    ]


def _flood(hosts: BareHosts, src: int, dst: int, mbit: float, seconds: float) -> None:
    payload = bytes(MTU - 28)
    per_packet_s = len(payload) * 8 / (mbit * 1e6)
    with hosts.socket(src, socket.SOCK_DGRAM) as sender:
        began, sent = time.monotonic(), 0
        while (spent := time.monotonic() - began) < seconds:
            while sent * per_packet_s < spent:
                sender.sendto(payload, (hosts.address(dst), 9))
                sent += 1
            time.sleep(0.002)


def _child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _pour(sender: socket.socket, seconds: float) -> None:
    block, end = bytes(1 << 18), time.monotonic() + seconds
    sender.settimeout(0.2)  # the receiver stops reading at about the same time
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            sender.send(block)


def _drink(receiver: socket.socket, seconds: float) -> None:
    room, end = bytearray(1 << 20), time.monotonic() + seconds
    receiver.settimeout(0.2)
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            receiver.recv_into(room)


@pytest.fixture(scope="session", params=[KernelEngine, UmlEngine], ids=lambda kind: kind.name)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    found = next(state for state in availability() if state.name == request.param.name)
    if not found.usable:
        pytest.skip(f"no {found.name} engine: {found.reason}")
    made: Engine = request.param()
    made.start(HOSTS)
    made.wait_ready(60)
    yield made
    made.stop()


@pytest.fixture
def measure(engine: Engine) -> Iterator[Measure]:
    """Measurements between four fresh hosts with jumbo frames and offloads off."""
    with BareHosts(engine, HOSTS, mtu=MTU) as hosts:
        yield Measure(engine, hosts)
        engine.apply({})
