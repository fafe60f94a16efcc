"""Collect what a job prints, without letting it fill the memory."""

from __future__ import annotations

import threading
from typing import IO

_KEPT_BYTES = 256 * 1024


class CappedOutput:
    """Reads a stream to its end in the background and keeps the first and last part of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """What was printed so far; a note stands where the middle was left out."""
        head = self._head.decode(errors="replace")
        if not self._tail:
            return head
        note = f"\n[... {self._dropped} bytes left out ...]\n" if self._dropped else ""
        return head + note + self._tail.decode(errors="replace")

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the stream, at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        half = _KEPT_BYTES // 2
        descriptor_read = getattr(self._stream, "read1", self._stream.read)
        while chunk := descriptor_read(65536):
            room = half - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[max(room, 0) :]
            if len(self._tail) > half:
                self._dropped += len(self._tail) - half
                del self._tail[:-half]
