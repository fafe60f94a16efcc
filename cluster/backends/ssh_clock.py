"""How far the monotonic clock of another machine is from this one's."""

from __future__ import annotations

import subprocess
import time

from cluster.interface import ClusterError, Host

_ROUNDS = 7
_TIMEOUT_S = 5.0
_TELL_TIME = (
    "import sys, time\nfor line in sys.stdin:\n    print(repr(time.monotonic()), flush=True)\n"
)


def measure_offset(host: Host) -> float:
    """Seconds to add to the host's monotonic clock to get this machine's.

    Asked a few times over one connection; the quickest answer counts, and is off by at most half
    the time it took. Raises ClusterError when the host does not answer.
    """
    teller = host.start(
        [host.python, "-I", "-S", "-c", _TELL_TIME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert teller.stdin is not None and teller.stdout is not None
    best_trip, offset = float("inf"), 0.0
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        for _ in range(_ROUNDS):
            asked = time.monotonic()
            if best_trip < float("inf") and asked > deadline:
                break
            teller.stdin.write(b"\n")
            teller.stdin.flush()
            theirs = float(teller.stdout.readline())
            trip = time.monotonic() - asked
            if trip < best_trip:
                best_trip, offset = trip, asked + trip / 2 - theirs
    except (OSError, ValueError) as error:
        raise ClusterError(f"{host.name} does not tell its time: {error}") from error
    finally:
        teller.kill()
        teller.communicate()
    return offset
