"""Positive control: packets between hosts show that the faults in force are those asked for."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import statistics
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import Self

from cluster.network import qdiscs
from cluster.network.bounds import Expected, choose_pairs, loss_interval
from cluster.network.engine import Engine
from cluster.network.errors import FaultNotApplied
from cluster.network.namespaces import in_netns
from cluster.network.netem import Netem
from cluster.network.netem_codec import same_effect
from cluster.network.paths import Path
from cluster.network.probe_sockets import open_datagram, receive_all

# What each attempt forgives, since a busy machine is late: ms above the delay, share of the rate.
_ATTEMPTS = ((0.5, 0.85), (0.5, 0.85), (0.5, 0.85), (2.0, 0.6), (5.0, 0.3))
_QUIET_MS = 30.0  # how long after the last packet was due the probe still waits for it
_PAYLOAD = struct.Struct("=8sHIq")
_FULL_BYTES, _SMALL_BYTES = 1_400, 64
_CHUNK, _PAUSE_S, _SIP = 64, 0.0005, 16
_HEADERS = 42
_MOST_PACKETS = 1_500
_QUEUE = 900  # fewer than a shaper queues


@dataclass
class _Probe:
    """One direction under test, and what was seen of it."""

    src: int
    dst: int
    expected: Expected
    packets: int
    size: int
    delays_ms: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    offered_mbit: float = 0.0
    """Rate at which the packets were sent: on a busy machine less than the path would carry."""

    @property
    def serial_s(self) -> float:
        """How long the packets take to pass the slowest link, one after another."""
        rate = self.expected.rate_mbit
        return self.packets * (self.size + _HEADERS) * 8 / (rate * 1e6) if rate else 0.0

    @property
    def lasts_s(self) -> float:
        """How long the packets are under way, at most."""
        return (self.expected.delay_ms + self.expected.jitter_ms) / 1e3 + self.serial_s


@dataclass(frozen=True)
class Measured:
    """What one probe found between two hosts."""

    src: int
    dst: int
    sent: int
    lost: int
    delay_ms: float | None
    """The shortest one-way delay, or the median where packets overtake; None if none arrived."""
    rate_mbit: tuple[float, float] | None
    """Between which values the rate lies, where one was asked for."""


class Prober:
    """Sends and receives inside hosts without any process there. Usable as a context manager."""

    def __init__(
        self, engine: Engine, netns: Mapping[int, int | str | FilePath], address: Mapping[int, str]
    ) -> None:
        """`netns` and `address` give namespace and data address of each host index.

        Raises OSError when a namespace cannot be entered.
        """
        self._engine = engine
        self._stamp = os.urandom(8)  # a host's own processes cannot forge an arrival
        self._senders: dict[int, socket.socket] = {}
        self._receivers: dict[int, socket.socket] = {}
        for host, where in netns.items():
            self._senders[host] = in_netns(where, partial(open_datagram, None))
            self._receivers[host] = in_netns(where, partial(open_datagram, address[host]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets, so that the hosts' namespaces can go."""
        for opened in (*self._senders.values(), *self._receivers.values()):
            opened.close()

    def confirm(self, rules: Mapping[Path, Netem], *, idle: bool = True) -> list[Measured]:
        """Check that `rules` are in force: read back from the kernel, then shown by packets.

        `idle` says that nothing else is sent meanwhile; otherwise only the sides are checked that
        other traffic cannot spoil. Raises FaultNotApplied, EngineError.
        """
        self.check_read_back(rules)
        pending = choose_pairs(rules, set(self._senders))
        found: list[Measured] = []
        complaint = ""
        for forgiven in _ATTEMPTS:
            probes = [
                _Probe(src, dst, expected, *_burst(expected)) for src, dst, expected in pending
            ]
            self._send_and_receive(probes)
            pending = []
            for probe in probes:
                measured = _summary(probe)
                wrong = _judge(probe, measured, forgiven if idle else None)
                if wrong is None:
                    found.append(measured)
                else:
                    complaint = f"host {probe.src} -> host {probe.dst}: {wrong}"
                    pending.append((probe.src, probe.dst, probe.expected))
            if not pending:
                return found
        raise FaultNotApplied(f"the network does not show the fault asked for: {complaint}")

    def check_read_back(self, rules: Mapping[Path, Netem]) -> None:
        """Compare `rules` with what the switch's kernel reports. Raises FaultNotApplied."""
        reported = self._engine.read_back()
        for path, fault in rules.items():
            found = reported.get(path, Netem())
            if not same_effect(fault, found):
                raise FaultNotApplied(
                    f"{path.describe()}: asked for {fault.describe()}, "
                    f"but the kernel reports {found.describe()}"
                )
        for path in reported.keys() - rules.keys():
            raise FaultNotApplied(
                f"{path.describe()}: healed, but the kernel reports {reported[path].describe()}"
            )

    def _send_and_receive(self, probes: list[_Probe]) -> None:
        by_pair = {(probe.src, probe.dst): probe for probe in probes}
        for receiver in self._receivers.values():
            receive_all(receiver)
        poller = select.poll()
        hosts = {}
        for host in {probe.dst for probe in probes}:
            hosts[self._receivers[host].fileno()] = host
            poller.register(self._receivers[host], select.POLLIN)
        for first in range(0, max((probe.packets for probe in probes), default=0), _CHUNK):
            for probe in probes:
                if probe.expected.rate_mbit is None:
                    self._send(probe, range(first, min(first + _CHUNK, probe.packets)))
            self._collect(poller, hosts, by_pair, time.monotonic() + _PAUSE_S, awaited=probes)
        for probe in probes:
            if probe.expected.rate_mbit is not None:  # in one go, so that the path is the limit
                began = time.monotonic()
                for first in range(0, probe.packets, _SIP):
                    self._send(probe, range(first, min(first + _SIP, probe.packets)))
                    self._take(probe.dst, by_pair)  # the socket's buffer may be small
                spent = max(time.monotonic() - began, 1e-6)
                probe.offered_mbit = probe.packets * (probe.size + _HEADERS) * 8 / spent / 1e6
                # The next burst would queue behind this one in the switch, and arrive late.
                drained = time.monotonic() + probe.serial_s
                self._collect(poller, hosts, by_pair, drained, awaited=[probe])
        longest = max((probe.lasts_s for probe in probes), default=0.0)
        deadline = time.monotonic() + longest + _QUIET_MS / 1e3
        self._collect(poller, hosts, by_pair, deadline, awaited=probes)

    def _send(self, probe: _Probe, numbers: range) -> None:
        sender, to = self._senders[probe.src], self._receivers[probe.dst].getsockname()
        for number in numbers:
            body = _PAYLOAD.pack(self._stamp, probe.src, number, time.time_ns())
            with contextlib.suppress(OSError):  # such as no route while all is lost
                sender.sendto(body.ljust(probe.size, b"\0"), to)

    def _collect(
        self,
        poller: select.poll,
        hosts: dict[int, int],
        by_pair: dict[tuple[int, int], _Probe],
        deadline: float,
        *,
        awaited: Iterable[_Probe],
    ) -> None:
        """Take packets of all probes until those awaited are complete, or the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            for number, _ in poller.poll(max(1, left * 1e3)):
                self._take(hosts[number], by_pair)
            if all(len(p.seen) == p.packets for p in awaited):
                return

    def _take(self, host: int, by_pair: dict[tuple[int, int], _Probe]) -> None:
        for body, arrived in receive_all(self._receivers[host]):
            if len(body) < _PAYLOAD.size:
                continue
            stamp, src, count, sent = _PAYLOAD.unpack_from(body)
            probe = by_pair.get((src, host))
            if stamp == self._stamp and probe is not None and count not in probe.seen:
                probe.seen.add(count)
                probe.delays_ms.append((arrived - sent) / 1e6)
                probe.arrivals.append(arrived / 1e9)


def _burst(expected: Expected) -> tuple[int, int]:
    """Number and size in bytes of the packets that show a fault best."""
    if expected.cut:
        return 5, _SMALL_BYTES
    packets, size = 10, _SMALL_BYTES
    if expected.rate_mbit is not None:
        size = _FULL_BYTES
        measured_s = qdiscs.BURST_S * 3
        packets = max(40, math.ceil(expected.rate_mbit * 1e6 / 8 * measured_s / size))
        packets = min(packets, _QUEUE, max(3, expected.queue_packets - 1))
    if expected.loss > 0:
        packets = max(packets, math.ceil(10 / expected.loss))
    return min(packets, _MOST_PACKETS), size


def _summary(probe: _Probe) -> Measured:
    delays, expected = probe.delays_ms, probe.expected
    typical = min if not (expected.jitter_ms or expected.reorder) else statistics.median
    return Measured(
        probe.src,
        probe.dst,
        sent=probe.packets,
        lost=probe.packets - len(probe.seen),
        delay_ms=float(typical(delays)) if delays else None,
        rate_mbit=_rates(probe),
    )


def _rates(probe: _Probe) -> tuple[float, float] | None:
    """Rate on the wire in Mbit/s, as low and as high as the arrivals allow; None if too few.

    A token bucket lets its tokens through at once, and again after each pause of the sender.
    """
    arrivals, asked = sorted(probe.arrivals), probe.expected.rate_mbit
    if asked is None or len(arrivals) < 3 or arrivals[-1] <= arrivals[0]:
        return None
    tokens = max(2 * 9_014 * 8, asked * 1e6 * qdiscs.BURST_S)
    bits = (len(arrivals) - 1) * (probe.size + _HEADERS) * 8
    spent = arrivals[-1] - arrivals[0]
    return max(0.0, bits - tokens) / spent / 1e6, bits / spent / 1e6


def _judge(probe: _Probe, measured: Measured, forgiven: tuple[float, float] | None) -> str | None:
    """What contradicts the expectation, in words; None if nothing does.

    With nothing `forgiven`, other traffic may delay and push out packets at will.
    """
    expected, idle = probe.expected, forgiven is not None
    late_ms, least_share = forgiven or (0.0, 0.0)
    if expected.cut:
        arrived = measured.sent - measured.lost
        return f"{arrived} of {measured.sent} packets crossed a cut path" if arrived else None
    least, _ = loss_interval(measured.sent, expected.loss, expected.burstiness)
    damaged = 1 - (1 - expected.loss) * (1 - expected.corrupt)
    _, most = loss_interval(measured.sent, damaged, expected.burstiness)
    if measured.lost < least or (idle and measured.lost > most):
        return (
            f"{measured.lost} of {measured.sent} packets lost, "
            f"expected {least} to {most} at {damaged:.2%}"
        )
    if measured.delay_ms is None:
        return f"none of {measured.sent} packets arrived"
    slack = max(0.02 * expected.delay_ms, late_ms)
    serial = probe.size * 8 / (expected.rate_mbit * 1e3) if expected.rate_mbit else 0.0
    low = expected.delay_ms - (expected.jitter_ms or 0.1) - (slack if expected.reorder else 0)
    high = expected.delay_ms + expected.jitter_ms + serial + slack
    if measured.delay_ms < low or (idle and measured.delay_ms > high):
        return f"{measured.delay_ms:.2f} ms one way, expected {low:.2f} to {high:.2f} ms"
    if expected.rate_mbit is not None and measured.rate_mbit is not None:
        (low, high), asked = measured.rate_mbit, expected.rate_mbit
        if low > 1.1 * asked or (idle and high < least_share * min(asked, probe.offered_mbit)):
            return f"{low:.1f} to {high:.1f} Mbit/s, expected {asked:g} Mbit/s"
    return None
