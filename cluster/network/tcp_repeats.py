"""What TCP sent a second time, so that nobody pays for packets that the machine lost or held up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cluster.network.errors import EngineError
from cluster.network.namespaces import in_netns

_SEGMENT_HEADERS = 20 + 20 + 12
"""Of IP and TCP, and time stamps."""


@dataclass(frozen=True)
class TcpRepeats:
    """One host's, since it was made. resent: segments sent again. needless: those of its segments
    that came twice, as the receivers reported (duplicate SACK, RFC 2883). reports: how often the
    host itself reported that; one report may stand for many segments. segment_bytes: payload of a
    full segment."""

    resent: int = 0
    needless: int = 0
    reports: int = 0
    segment_bytes: int = 1448

    def __sub__(self, earlier: TcpRepeats) -> TcpRepeats:
        return TcpRepeats(
            self.resent - earlier.resent,
            self.needless - earlier.needless,
            self.reports - earlier.reports,
            self.segment_bytes,
        )


NO_REPEATS = TcpRepeats()


class RepeatMeter:
    """Reads the TCP counters of one network namespace again and again, at some 100 us a reading."""

    def __init__(self, netns: int | str | Path, mtu: int) -> None:
        """`netns`: an open namespace file, its path, or its name. `mtu`: of its link, in bytes.

        Raises EngineError.
        """
        self._mtu = mtu
        try:
            self._files = in_netns(netns, _open)
        except OSError as error:
            raise EngineError(f"network namespace {netns} cannot be entered: {error}") from error

    def read(self) -> TcpRepeats:
        snmp, netstat = (os.pread(file, 1 << 16, 0).decode("ascii") for file in self._files)
        return repeats(snmp, netstat, self._mtu)

    def close(self) -> None:
        """Give the files back; open, they would keep the namespace."""
        for file in self._files:
            os.close(file)


def _open() -> tuple[int, int]:
    snmp = os.open("/proc/thread-self/net/snmp", os.O_RDONLY | os.O_CLOEXEC)
    return snmp, os.open("/proc/thread-self/net/netstat", os.O_RDONLY | os.O_CLOEXEC)


def repeats(snmp: str, netstat: str, mtu: int) -> TcpRepeats:
    """Out of the text of /proc/net/snmp and /proc/net/netstat; 0 for what a kernel does not count
    (needless: before Linux 5.10)."""
    tcp, more = _table(snmp, "Tcp:"), _table(netstat, "TcpExt:")
    return TcpRepeats(
        tcp.get("RetransSegs", 0),
        more.get("TCPDSACKRecvSegs", 0),
        more.get("TCPDSACKOldSent", 0) + more.get("TCPDSACKOfoSent", 0),
        mtu - _SEGMENT_HEADERS,
    )


def _table(text: str, protocol: str) -> dict[str, int]:
    """A line of names and one of numbers."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith(f"{protocol} ")]
    return dict(zip(lines[0], map(int, lines[1]), strict=True)) if len(lines) == 2 else {}
