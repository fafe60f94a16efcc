"""What every engine must do, against each that this machine can run."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Mapping

import pytest

from cluster.network.bare_hosts import BareHosts
from cluster.network.counters import LinkMeter, read_counters
from cluster.network.engine import Engine
from cluster.network.errors import EngineError, FaultNotApplied
from cluster.network.netem import CUT, GilbertElliott, Netem
from cluster.network.paths import Path, partition
from cluster.network.probe import Prober

FAULTS: list[dict[Path, Netem]] = [
    {Path(0, None): Netem(delay_ms=5)},
    {Path(None, 2): Netem(delay_ms=20)},
    {Path(0, 1): Netem(delay_ms=10, jitter_ms=4)},
    {Path(0, None): Netem(delay_ms=3), Path(0, 1): Netem(delay_ms=4), Path(None, 1): CUT},
    {Path(3, None): Netem(loss_pct=20)},
    {Path(3, 1): Netem(gemodel=GilbertElliott(5, 20, 90, 1))},
    {Path(1, None): Netem(rate_mbit=50)},
    {Path(1, 0): Netem(rate_mbit=50, delay_ms=2)},
    {Path(1, None): Netem(rate_mbit=50, delay_ms=2, limit_packets=500)},
    {Path(1, None): Netem(rate_mbit=50, delay_ms=10, limit_packets=12)},
    {Path(2, None): Netem(rate_mbit=100, delay_ms=5, loss_pct=10)},
    {Path(2, 0): Netem(corrupt_pct=30)},
    {Path(2, 0): Netem(delay_ms=8, reorder_pct=20, duplicate_pct=10)},
    partition([{0, 1}, {2, 3}]),
    partition([{0}, {1}, {2}, {3}]),
    {
        Path(i, j): Netem(rate_mbit=(16, 100, 200)[(i + 2 * j) % 3])
        for i, j in itertools.permutations(range(4), 2)
    },
]


def crossing(hosts: BareHosts, src: int, dst: int, *, broadcast: bool = False) -> bool:
    """Whether a datagram from `src` reaches `dst` within 300 ms."""
    with (
        hosts.socket(dst, socket.SOCK_DGRAM) as receiver,
        hosts.socket(src, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("0.0.0.0", 0))
        receiver.settimeout(0.3)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        port = receiver.getsockname()[1]
        sender.sendto(b"?", ("10.77.0.255" if broadcast else hosts.address(dst), port))
        try:
            return receiver.recv(8) == b"?"
        except TimeoutError:
            return False


@pytest.mark.parametrize("rules", FAULTS, ids=lambda rules: next(iter(rules.values())).describe())
def test_a_fault_reads_back_as_asked_and_packets_show_it(
    engine: Engine, prober: Prober, rules: Mapping[Path, Netem]
) -> None:
    engine.apply(rules)
    prober.confirm(rules)


def test_healing_leaves_no_rule_and_a_free_path(engine: Engine, prober: Prober) -> None:
    engine.apply({path: fault for rules in FAULTS for path, fault in rules.items()})
    engine.apply({})
    assert engine.read_back() == {}
    prober.confirm({})


def test_every_fault_can_follow_every_other(engine: Engine, hosts: BareHosts) -> None:
    for rules in FAULTS + FAULTS[::-1] + FAULTS[::3]:
        engine.apply(rules)
        assert engine.read_back().keys() == rules.keys()


def test_a_link_fault_hits_only_that_link(engine: Engine, hosts: BareHosts) -> None:
    engine.apply({Path(0, 1): CUT})
    pairs = [(src, dst) for src in range(4) for dst in range(4) if src != dst]
    assert [pair for pair in pairs if not crossing(hosts, *pair)] == [(0, 1)]


def test_a_partition_cuts_and_heals(engine: Engine, hosts: BareHosts) -> None:
    engine.apply(partition([{0, 3}, {1, 2}]))
    assert [crossing(hosts, 0, dst) for dst in (1, 2, 3)] == [False, False, True]
    engine.apply({})
    assert all(crossing(hosts, 0, dst) for dst in (1, 2, 3))


def test_a_broadcast_meets_the_faults_of_each_receiver(engine: Engine, hosts: BareHosts) -> None:
    engine.apply({Path(0, 1): CUT, Path(None, 2): Netem(delay_ms=1)})
    assert [crossing(hosts, 0, dst, broadcast=True) for dst in (1, 2, 3)] == [False, True, True]


def test_healing_a_delay_loses_nothing_under_way(engine: Engine, hosts: BareHosts) -> None:
    rules = {Path(0, None): Netem(delay_ms=100), Path(0, 1): Netem(delay_ms=50)}
    with (
        hosts.socket(1, socket.SOCK_DGRAM) as receiver,
        hosts.socket(0, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((hosts.address(1), 0))
        receiver.settimeout(1)
        engine.apply(rules)
        for number in range(20):
            sender.sendto(bytes([number]), receiver.getsockname())
        engine.apply({})
        engine.apply({})
        assert sorted(receiver.recv(8)[0] for _ in range(20)) == list(range(20))


def test_rules_stay_in_force_for_a_host_that_comes_later(engine: Engine) -> None:
    rules = {Path(None, 1): Netem(rate_mbit=80, delay_ms=5), Path(0, None): Netem(delay_ms=5)}
    engine.apply(rules)
    with (
        BareHosts(engine, 2) as hosts,
        Prober(
            engine, dict(enumerate(hosts.netns)), {i: hosts.address(i) for i in (0, 1)}
        ) as prober,
    ):
        prober.confirm(rules)
    engine.apply({})


def test_hosts_come_and_go_and_the_switch_stays(engine: Engine) -> None:
    for _ in range(3):
        with BareHosts(engine, 4) as hosts:
            assert crossing(hosts, 2, 3)
            os.close(hosts.netns[0])  # its namespace goes, and its cable, before it is unplugged
            hosts.netns[0] = os.dup(hosts.netns[1])
            time.sleep(0.05)
    engine.unplug(0)
    assert engine.alive()


def test_applying_and_reading_back_is_quick(engine: Engine, hosts: BareHosts) -> None:
    timeline = [FAULTS[0], FAULTS[-2], {}, FAULTS[9], {}]
    spent = []
    for rules in timeline * 3:
        began = time.perf_counter()
        engine.apply(rules)
        spent.append(time.perf_counter() - began)
    print(f"\n{engine.name}: apply took {min(spent) * 1e3:.1f} to {max(spent) * 1e3:.1f} ms")
    assert sorted(spent)[len(spent) // 2] < 0.06


def test_a_host_beyond_the_switch_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="valid: 0 to 3"):
        engine.apply({Path(0, 4): CUT})
    assert engine.read_back() == {}


def test_an_interface_that_is_not_there_is_refused(engine: Engine) -> None:
    with pytest.raises(EngineError, match="nowhere0"):
        engine.plug(0, "nowhere0")
    assert engine.alive()


def test_counters_see_every_packet_once(engine: Engine, hosts: BareHosts) -> None:
    meters = [LinkMeter(netns) for netns in hosts.netns]
    before = [meter.read("data0") for meter in meters]
    with (
        hosts.socket(1, socket.SOCK_DGRAM) as receiver,
        hosts.socket(0, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((hosts.address(1), 0))
        receiver.settimeout(1)
        for _ in range(100):
            sender.sendto(bytes(958), receiver.getsockname())
            receiver.recv(1_000)
    passed = [meter.read("data0") - earlier for meter, earlier in zip(meters, before, strict=True)]
    assert (passed[0].tx_packets, passed[0].tx_bytes) == (100, 100_000)
    assert (passed[1].rx_packets, passed[1].rx_bytes) == (100, 100_000)
    assert passed[2].rx_packets == passed[3].rx_packets == 0
    for meter in meters:
        meter.close()


def test_counters_of_a_missing_interface_are_an_error(hosts: BareHosts) -> None:
    with pytest.raises(EngineError, match="nothing0"):
        read_counters(hosts.netns[0], "nothing0")


class Forgetful:
    """An engine whose kernel loses every rule."""

    def __init__(self, engine: Engine, reports: Mapping[Path, Netem]) -> None:
        self._engine = engine
        self._reports = reports

    def read_back(self) -> Mapping[Path, Netem]:
        return self._reports


@pytest.mark.parametrize(
    "fault",
    [Netem(delay_ms=30), CUT, Netem(loss_pct=40), Netem(rate_mbit=2)],
    ids=Netem.describe,
)
def test_a_fault_that_packets_do_not_show_is_found_out(
    engine: Engine, hosts: BareHosts, fault: Netem
) -> None:
    rules = {Path(0, None): fault}
    where = {host: hosts.address(host) for host in range(4)}
    liar = Forgetful(engine, rules)
    with (
        Prober(liar, dict(enumerate(hosts.netns)), where) as prober,  # type: ignore[arg-type]
        pytest.raises(FaultNotApplied, match="host 0 -> host"),
    ):
        prober.confirm(rules)


def test_a_fault_that_the_kernel_does_not_report_is_found_out(
    engine: Engine, prober: Prober
) -> None:
    with pytest.raises(FaultNotApplied, match=r"asked for 5 ms delay.* reports no fault"):
        prober.confirm({Path(0, None): Netem(delay_ms=5)})
    engine.apply({Path(0, None): Netem(delay_ms=5)})
    with pytest.raises(FaultNotApplied, match="healed"):
        prober.confirm({})


@pytest.mark.parametrize("mtu", [1_500, 9_000])
def test_bulk_traffic_with_offloads_on_passes_every_fault(engine: Engine, mtu: int) -> None:
    sent = 3_000_000
    with BareHosts(engine, 2, mtu=mtu, offload=True) as hosts:
        engine.apply(
            {Path(0, None): Netem(delay_ms=1, rate_mbit=500), Path(0, 1): Netem(delay_ms=1)}
        )
        with (
            hosts.socket(1, socket.SOCK_STREAM) as door,
            hosts.socket(0, socket.SOCK_STREAM) as sender,
        ):
            door.bind((hosts.address(1), 0))
            door.listen()
            sender.connect(door.getsockname())
            receiver, _ = door.accept()
            with receiver:
                receiver.settimeout(10)
                pouring = threading.Thread(target=sender.sendall, args=(bytes(sent),))
                pouring.start()
                received = 0
                while received < sent:
                    received += len(receiver.recv(1 << 20))
                pouring.join()
        engine.apply({})
