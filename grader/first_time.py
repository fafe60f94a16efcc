"""Traffic as it is judged: what TCP had to send again counts once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.interface import Traffic


def first_time(traffic: Sequence[Traffic]) -> tuple[Traffic, ...]:
    """One case's traffic, host by host, without TCP's repeats.

    A machine that stands still for a fifth of a second makes TCP send a whole window again,
    megabytes of it; that is none of the submission's doing. Senders learn how many of their
    segments came twice, though not at whom: these are shared out by how often each host reported
    any. Bytes are those of full segments, without headers.

    A connection that nobody answers is also "sent again", as often as one likes. So no more is
    left out than came twice or got lost.
    """
    needless = sum(host.repeats.needless for host in traffic)
    reports = sum(host.repeats.reports for host in traffic)
    lost_bytes = max(0, sum(host.sent_bytes - host.received_bytes for host in traffic))
    lost_packets = max(0, sum(host.sent_packets - host.received_packets for host in traffic))
    counted = []
    for host in traffic:
        again = host.repeats
        twice = round(needless * again.reports / reports) if reports else 0
        segment = again.segment_bytes
        resent_bytes = min(segment * again.resent, segment * again.needless + lost_bytes)
        resent_packets = min(again.resent, again.needless + lost_packets)
        counted.append(
            replace(
                host,
                sent_bytes=max(0, host.sent_bytes - resent_bytes),
                sent_packets=max(0, host.sent_packets - resent_packets),
                received_bytes=max(0, host.received_bytes - segment * twice),
                received_packets=max(0, host.received_packets - twice),
            )
        )
    return tuple(counted)
