"""Send a signal to those processes that expect it: to any other, most signals are the end.

It needs nothing but the standard library, so its text can also run on another machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def signal_handlers_of(pids: Iterable[int], number: int) -> None:
    """Send signal `number` to those processes of this machine that catch it.

    Without /proc nobody can tell which do, and nothing is sent.
    """
    for pid in pids:
        if _catches(pid, number):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _catches(pid: int, number: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
