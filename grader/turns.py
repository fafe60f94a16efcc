"""Whose turn it is on a machine that grades several submissions at once.

What is counted may be counted beside others; what is timed needs the processors to itself. So
checks take turns across all batches of a user: many counting checks together, or one timed check
alone. Nobody says which checks are timed: one that looks at a time while others are about is
stopped, and run again alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from cluster.ledger import state_folder


class Manners(StrEnum):
    """How a grading behaves towards others on the machine."""

    FREE = "free"  # it takes no turns: the only one, as far as its caller knows
    ALONE = "alone"  # every check has a turn of its own
    SHARED = "shared"  # counting checks share a turn


class TimedBesideOthers(Exception):
    """A check looked at a time that was taken while others used the machine."""


class Turns:
    """The turns of one process. Its checks run one after another."""

    def __init__(self, manners: Manners = Manners.FREE, folder: Path | None = None) -> None:
        self.manners = manners
        self._folder = folder or state_folder()
        self._timed: set[str] = set()

    def is_alone(self, check: str) -> bool:
        """Whether a check must have the machine to itself, as far as is known by now."""
        return self.manners is not Manners.SHARED or check in self._timed

    def is_timed(self, check: str) -> None:
        """Remember that a check looks at times."""
        self._timed.add(check)

    @contextmanager
    def take(self, *, alone: bool) -> Iterator[None]:
        """Wait for a turn and hold it while the block lasts. The kernel ends the turn of a process
        that dies."""
        if self.manners is Manners.FREE:
            yield
            return
        room = self._open("turn")
        try:
            # Whoever waits for the room keeps the door, so that nobody waits for ever behind
            # those who come later.
            door = self._open("turn.door")
            try:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            finally:
                os.close(door)
            yield
        finally:
            os.close(room)

    def _open(self, name: str) -> int:
        with suppress(FileExistsError):
            self._folder.mkdir(parents=True)
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
