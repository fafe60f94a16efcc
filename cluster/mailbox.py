"""Mailboxes that are folders on this machine: used by emulated and by plain-process hosts."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cluster.interface import Mailbox, OversizedFile

_MOST_NAMES = 10_000


class FolderMailbox(Mailbox):
    """A mailbox of three folders; staging and inbox must share a file system."""

    def __init__(self, staging: Path, inbox: Path, outbox: Path) -> None:
        self._staging, self._inbox, self._outbox = staging, inbox, outbox
        self._outbox_prefix = f"{outbox}/"  # `size` is asked thousands of times a second

    def stage(self, name: str, content: bytes | memoryview) -> None:
        path = self._staging / name
        with path.open("wb") as stream:
            stream.write(content)
        path.chmod(0o644)

    def reveal(self, names: Sequence[str]) -> None:
        for name in names:
            (self._staging / name).rename(self._inbox / name)

    def size(self, name: str) -> int | None:
        try:
            status = os.lstat(self._outbox_prefix + name)
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def fetch(self, name: str, limit: int) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._outbox / name, flags)
        except OSError as error:
            raise FileNotFoundError(name) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise FileNotFoundError(name)
        with os.fdopen(descriptor, "rb") as stream:
            if status.st_size > limit:
                raise OversizedFile(f"{name} has {status.st_size} bytes, more than {limit}")
            return stream.read(limit)

    def names(self) -> list[str]:
        found: list[str] = []
        with os.scandir(self._outbox) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) >= _MOST_NAMES:
                    break
        return sorted(found)

    def remove(self, prefix: str) -> None:
        for folder in (self._staging, self._inbox, self._outbox):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(prefix) and not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
