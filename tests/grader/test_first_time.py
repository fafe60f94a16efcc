"""What TCP repeats is not charged to the ranks; what they send themselves is, whatever they try."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.interface import Traffic
from cluster.network.namespaces import new_netns
from cluster.network.tcp_repeats import RepeatMeter, TcpRepeats, repeats
from grader.first_time import first_time

MIB = 1 << 20
QUIET = Traffic(16 * MIB, 12_000, 16 * MIB, 12_000, 0)


def test_without_repeats_nothing_changes() -> None:
    assert first_time([QUIET] * 3) == (QUIET,) * 3


def test_a_window_that_came_twice_counts_once_at_both_ends() -> None:
    again = 1448 * 1400
    sender = replace(QUIET, sent_bytes=QUIET.sent_bytes + again, repeats=TcpRepeats(1400, 1400, 0))
    receiver = replace(
        QUIET, received_bytes=QUIET.received_bytes + again, repeats=TcpRepeats(0, 0, 32)
    )
    counted = first_time([sender, receiver, QUIET])
    assert [t.sent_bytes for t in counted] == [16 * MIB] * 3
    assert [t.received_bytes for t in counted] == [16 * MIB] * 3


def test_what_was_lost_and_sent_again_counts_once() -> None:
    lost = 1448 * 90
    sender = replace(QUIET, sent_bytes=QUIET.sent_bytes + lost, repeats=TcpRepeats(90, 0, 0))
    assert first_time([sender, QUIET])[0].sent_bytes == QUIET.sent_bytes


def test_connections_that_nobody_answers_hide_nothing() -> None:
    knocking = replace(QUIET, repeats=TcpRepeats(resent=50_000))
    assert first_time([knocking, QUIET])[0].sent_bytes == QUIET.sent_bytes
    assert first_time([knocking, QUIET])[0].sent_packets == QUIET.sent_packets


def test_the_kernel_s_table_is_read() -> None:
    snmp = "Tcp: InSegs RetransSegs\nTcp: 7 3\n"
    netstat = (
        "TcpExt: TCPDSACKOldSent TCPDSACKOfoSent TCPDSACKRecvSegs\nTcpExt: 5 1 44\n"
        "IpExt: InOctets\nIpExt: 9\n"
    )
    assert repeats(snmp, netstat, 1500) == TcpRepeats(resent=3, needless=44, reports=6)
    assert repeats(snmp, "TcpExt: TW\nTcpExt: 0\n", 9000) == TcpRepeats(3, 0, 0, 8948)


def test_a_new_namespace_has_repeated_nothing() -> None:
    meter = RepeatMeter(new_netns(), 1500)
    try:
        assert meter.read() == TcpRepeats()
    finally:
        meter.close()
    with pytest.raises(OSError, match="Bad file"):
        meter.read()
