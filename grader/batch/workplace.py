"""The folder that a batch writes to, and the locks by which two batches keep apart."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grader.run_folder import NoSpace, require_room


class AnotherBatch(Exception):
    """Another batch is at work on the same folder: one sentence for the user."""


def prepare(target: Path) -> None:
    """Make the folder. Raises NoSpace where it cannot hold results."""
    with telling_of_trouble(target):
        target.mkdir(parents=True, exist_ok=True)
        has_room(target)


def has_room(target: Path) -> None:
    """Raise NoSpace when one more grading would not fit."""
    require_room(target, "name another folder with --to; the same command goes on from there")


@contextmanager
def telling_of_trouble(target: Path) -> Iterator[None]:
    """Raise NoSpace for what the file system refuses in the block."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else str(error.strerror)
        raise NoSpace(
            f"{target} cannot be written: {reason}; mend that and give the same command again, "
            "which goes on from there"
        ) from None


@contextmanager
def held(*folders: Path) -> Iterator[None]:
    """Keep other batches off these folders. Raises AnotherBatch.

    The kernel lets go of them when this process ends, whichever way.
    """
    handles = []
    try:
        for folder in folders:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            handles.append(handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AnotherBatch(
                    f"another batch is at work on {folder}; wait for its end"
                ) from None
        yield
    finally:
        for handle in handles:
            os.close(handle)
