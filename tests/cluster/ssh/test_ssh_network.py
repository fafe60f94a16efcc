"""How the ssh backend turns faults into tc commands, and what it reads back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cluster.backends.ssh_network import Leaf, agrees, leaves_of, netem_arguments, tc_commands
from cluster.interface import Unfit
from cluster.network.netem import CUT, GilbertElliott, Netem
from cluster.network.paths import Path as NetworkPath


def test_tc_leaves_everything_but_the_peers_alone() -> None:
    leaf = Leaf((1, 2), Netem(delay_ms=10, rate_mbit=100))
    root, qdisc, *filters = tc_commands("eth1", [leaf], ["10.0.0.1", "10.0.0.2", "fd00::3"])
    assert " ".join(root) == (
        "qdisc replace dev eth1 root handle d157: prio bands 16 priomap" + " 0" * 16
    )
    assert " ".join(qdisc) == (
        "qdisc add dev eth1 parent d157:2 netem limit 1105 delay 10000us 0us rate 100000000bit"
    )
    assert [" ".join(words).partition("u32 ")[2] for words in filters] == [
        "match ip dst 10.0.0.2/32 flowid d157:2",
        "match ip6 dst fd00::3/128 flowid d157:2",
    ]
    with pytest.raises(Unfit, match="data_address"):
        tc_commands("eth1", [leaf], ["10.0.0.1", "node2", "node3"])


def test_faults_on_one_path_add_up_or_are_refused() -> None:
    out, link, into = NetworkPath(0, None), NetworkPath(0, 2), NetworkPath(None, 2)
    slow, lossy = Netem(delay_ms=10, loss_pct=50), Netem(delay_ms=5, loss_pct=50)
    assert leaves_of(0, {out: slow}, 3) == [Leaf((1, 2), slow)]
    assert leaves_of(1, {out: slow}, 3) == []
    both = leaves_of(0, {out: slow, link: lossy}, 3)
    assert both == [Leaf((1,), slow), Leaf((2,), Netem(delay_ms=15, loss_pct=75))]
    assert leaves_of(1, {into: CUT}, 3) == [Leaf((2,), CUT)]
    with pytest.raises(Unfit, match="rate out of a host"):
        leaves_of(0, {out: Netem(rate_mbit=10), link: lossy}, 3)
    with pytest.raises(Unfit, match="rate into a host"):
        leaves_of(0, {into: Netem(rate_mbit=10)}, 3)


# What `tc -j` of iproute2 6.1 reported under Linux 6.1 for the commands made from these faults.
_REPORTED = """[
{"limit":1121,"delay":{"delay":0.010499,"jitter":0.001,"correlation":0},
 "loss-random":{"loss":0.125,"correlation":0},"duplicate":{"duplicate":0.01,"correlation":0},
 "reorder":{"reorder":0.03,"correlation":0},"corrupt":{"corrupt":0.02,"correlation":0},
 "rate":{"rate":12562500,"packetoverhead":0,"cellsize":0,"celloverhead":0},"ecn":false,"gap":1},
{"limit":1000,"loss-gemodel":{"p":0.01,"r":0.25,"1-h":1,"1-k":0},"ecn":false,"gap":0},
{"limit":1000,"loss-random":{"loss":1,"correlation":0},"ecn":false,"gap":0}]"""
_ASKED = [
    Netem(
        delay_ms=10.5,
        jitter_ms=1,
        loss_pct=12.5,
        duplicate_pct=1,
        corrupt_pct=2,
        reorder_pct=3,
        rate_mbit=100.5,
    ),
    Netem(gemodel=GilbertElliott(p_pct=1, r_pct=25)),
    CUT,
]


def test_read_back_recognises_what_a_kernel_reports() -> None:
    assert [[agrees(options, fault) for fault in _ASKED] for options in json.loads(_REPORTED)] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


@pytest.mark.parametrize(
    "change",
    [{"delay_ms": 11}, {"loss_pct": 12}, {"rate_mbit": 100}, {"rate_mbit": None}, {"jitter_ms": 2}],
)
def test_read_back_notices_a_small_difference(change: dict[str, Any]) -> None:
    assert not agrees(json.loads(_REPORTED)[0], replace(_ASKED[0], **change))


def test_burst_loss_in_tc_s_words() -> None:
    assert " ".join(netem_arguments(_ASKED[1])[2:]) == (
        "loss gemodel 1.000000% 25.000000% 100.000000% 0.000000%"
    )
