from __future__ import annotations

import struct

import pytest

from cluster.network import filters, qdiscs
from cluster.network.fabric import host_mac
from cluster.network.netem import GilbertElliott, Netem
from cluster.network.netem_codec import same_effect
from cluster.network.qdiscs import Place

FAULTS = [
    Netem(delay_ms=0.001),
    Netem(delay_ms=10_000, jitter_ms=2_000),
    Netem(loss_pct=100 / 3),
    Netem(loss_pct=0.0005),
    Netem(gemodel=GilbertElliott(0.7, 33.3, 99.9, 0.1)),
    Netem(delay_ms=3, reorder_pct=25, duplicate_pct=1, corrupt_pct=2),
    Netem(rate_mbit=0.01, limit_packets=17),
    Netem(rate_mbit=30_000, delay_ms=1),
]


@pytest.mark.parametrize("fault", FAULTS, ids=Netem.describe)
def test_netem_survives_the_way_to_the_kernel_and_back(fault: Netem) -> None:
    decoded = qdiscs.decode_qdisc(qdiscs.put_netem(Place(7, band=3), fault))
    assert decoded.place == Place(7, band=3)
    assert decoded.fault is not None
    assert same_effect(fault, decoded.fault)
    assert decoded.fault.limit_packets == fault.limit_packets


def test_different_faults_are_not_taken_for_the_same() -> None:
    for first in FAULTS:
        assert [other for other in FAULTS if same_effect(first, other)] == [first]


def test_a_shaper_reports_its_rate_and_an_open_one_none() -> None:
    shaped = qdiscs.decode_qdisc(qdiscs.put_shaper(Place(7), Netem(rate_mbit=200), 1_500))
    assert shaped.fault == Netem(rate_mbit=200)
    assert qdiscs.decode_qdisc(qdiscs.put_shaper(Place(7), Netem(), 1_500)).fault == Netem()


def test_address_keys_cover_the_six_bytes_before_the_network_header() -> None:
    mac = host_mac(4)
    for keys, start in ((filters.to_host(mac), -14), (filters.from_host(mac), -8)):
        covered = {}
        for mask, value, offset in keys:
            for number in range(4):
                if mask[number]:
                    covered[offset + number] = value[number]
        assert covered == dict(zip(range(start, start + 6), mac, strict=True))


def test_readdressing_keeps_the_bytes_before_the_address() -> None:
    message = filters.put_redirect(3, 1, filters.TO_A_GROUP, 5, readdress=host_mac(1))
    first = struct.pack("=4s4si", b"\xff\xff\0\0", b"\0\0\x02\xd1", -16)
    second = struct.pack("=4s4si", bytes(4), b"\x57\0\0\x02", -12)
    assert first in message
    assert second in message
