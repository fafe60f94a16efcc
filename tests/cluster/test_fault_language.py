"""The fault language: each line becomes data, each mistake a sentence."""

from __future__ import annotations

import pytest

from cluster.faults.injector import merge, rules_of
from cluster.faults.language import (
    FaultSyntaxError,
    HostFault,
    Impair,
    Partition,
    is_of_the_network,
    parse_fault,
    parse_timeline,
)
from cluster.network.netem import CUT, Netem
from cluster.network.paths import Path

HOSTS = ["node1", "node2", "node3", "node4"]


@pytest.mark.parametrize(
    ("line", "netem", "kind"),
    [
        ("delay 20ms on all", Netem(delay_ms=20), "all"),
        ("delay 0.5s jitter 2ms on node1", Netem(delay_ms=500, jitter_ms=2), "host"),
        ("loss 1.5% on node1->node3", Netem(loss_pct=1.5), "link"),
        ("rate 200mbit delay 5ms on uplink node2", Netem(rate_mbit=200, delay_ms=5), "uplink"),
        ("limit 50 packets on downlink node4", Netem(limit_packets=50), "downlink"),
        ("rate 64kbit on node1", Netem(rate_mbit=0.064), "host"),
        ("reorder 5% delay 10ms on all", Netem(reorder_pct=5, delay_ms=10), "all"),
    ],
)
def test_network_faults(line: str, netem: Netem, kind: str) -> None:
    action = parse_fault(line, HOSTS).action
    assert isinstance(action, Impair)
    assert (action.netem, action.target.kind) == (netem, kind)


def test_times() -> None:
    fault = parse_fault("from 2s to 5.5s partition {node1, node2} | {node3}", HOSTS)
    assert (fault.start, fault.end) == (2.0, 5.5)
    assert fault.action == Partition((("node1", "node2"), ("node3",)))
    assert parse_fault("at 3s kill node2", HOSTS).action == HostFault("kill", "node2")
    assert parse_fault("cpus 0.25 on node4", HOSTS).action == HostFault("cpus", "node4", 0.25)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("8 MB/s", 8e6), ("8MB/s", 8e6), ("500 kB/s", 5e5), ("1.5 GB/s", 15e8)],
)
def test_speeds_of_disks(text: str, bytes_per_s: float) -> None:
    action = parse_fault(f"slow disk of node1 to {text}", HOSTS).action
    assert action == HostFault("slow disk", "node1", bytes_per_s)


def test_faults_of_hosts_need_no_network() -> None:
    lines = ["kill node1", "at 3s fill disk of node2", "from 1s to 2s slow disk of node1 to 1 MB/s"]
    assert not any(map(is_of_the_network, lines))
    assert all(map(is_of_the_network, ["delay 1ms on all", "at 1s partition {node1} | {node2}"]))


def test_a_timeline_is_a_fault_a_line() -> None:
    text = "delay 5ms on all\n\n# then\nat 1s kill node1; fill disk of node2\n"
    assert len(parse_timeline(text, HOSTS)) == 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("delya 20ms on all", "'delya' is no fault; there are delay"),
        ("delay 20 on all", "for example `delay 20ms on all`"),
        ("delay 20ms", "does not say where"),
        ("loss 150% on all", "loss_pct is 150"),
        ("delay 20ms on node9", "there is no host 'node9'; this cluster has node1"),
        ("partition {node1}", "for example `partition"),
        ("partition {node1} | {node1,node2}", "one side of a partition only"),
        ("from 5s to 2s kill node1", "before it begins"),
        ("loss 1% on node1->node1", "two different hosts"),
        ("cpus 0 on node1", "0.01 to 1024"),
        ("slow disk of node1", "for example `slow disk of node1 to 8 MB/s`"),
        ("slow disk of node1 to 0 MB/s", "still moves a byte"),
        ("", "is no fault"),
    ],
)
def test_mistakes_are_sentences(line: str, says: str) -> None:
    with pytest.raises(FaultSyntaxError) as caught:
        parse_fault(line, HOSTS)
    assert says in str(caught.value)


def test_faults_on_all_impair_each_path_once_and_rates_bind_both_ways() -> None:
    faults = parse_timeline("delay 20ms on all\nrate 200mbit on all", HOSTS)
    rules = rules_of(faults, HOSTS)
    assert rules[Path(None, 2)] == Netem(delay_ms=20, rate_mbit=200)
    assert rules[Path(2, None)] == Netem(rate_mbit=200)
    assert len(rules) == 8


def test_a_partition_cuts_every_link_between_the_groups_and_wins() -> None:
    faults = parse_timeline(
        "partition {node1,node2} | {node3,node4}\nloss 1% on node1->node3", HOSTS
    )
    rules = rules_of(faults, HOSTS)
    cut = {path for path, netem in rules.items() if netem == CUT}
    assert cut == {Path(a, b) for a in (0, 1) for b in (2, 3)} | {
        Path(b, a) for a in (0, 1) for b in (2, 3)
    }
    assert merge(Netem(delay_ms=3), Netem(loss_pct=2)) == Netem(delay_ms=3, loss_pct=2)
