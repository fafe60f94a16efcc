"""Process 1 of a User-Mode Linux guest that runs tests under its own kernel, which has netem.

Its argument is a JSON file: kernel `modules` to load, the `command` and `folder` to run it in, and
the file for its exit `status`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

FINIT_MODULE = 313
POWER_OFF = 0x4321FEDC


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")):
        libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None)
    for module in order["modules"]:
        opened = os.open(module, os.O_RDONLY)
        libc.syscall(FINIT_MODULE, opened, b"", 0)
        os.close(opened)
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    ended = subprocess.run(order["command"], cwd=order["folder"], env=environment, check=False)
    Path(order["status"]).write_text(str(ended.returncode))


try:
    main()
finally:
    ctypes.CDLL(None).reboot(POWER_OFF)
