"""A disk of a host that is a block device, so that the kernel can slow it down.

A file system in a file behind a loop device. What a program writes goes to the page cache at once,
as on any disk; what it syncs takes as long as the host's control group allows.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cluster.interface import Unfit


def mount(image: Path, folder: Path, size_mb: int) -> None:
    """Make a file system of `size_mb` MiB in the file `image` and mount it on `folder`.

    Blocks are allocated as they are written, so that a full disk says so at once. The loop device
    goes with the mount. Raises Unfit where the machine has none to give.
    """
    with image.open("wb") as stream:
        stream.truncate(size_mb * 2**20)
    for command in (
        ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal", str(image)],
        ["mount", "-o", "loop,nosuid,nodev,nodelalloc", str(image), str(folder)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Unfit(
                f"a host's disk cannot be made a device: {command[0]} is missing; bring it with "
                "`apt-get install -y e2fsprogs mount`"
            ) from None
        if done.returncode:
            raise Unfit(f"a host's disk cannot be made a device: {done.stderr.strip()}")


def device(folder: Path) -> str:
    """Numbers of the device that `folder` is on, as control groups name it: "7:0"."""
    number = os.stat(folder).st_dev
    return f"{os.major(number)}:{os.minor(number)}"
