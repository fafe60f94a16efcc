"""A ring buffer of what a rank did, in a mapped file, so that it outlives the rank.

Written by the rank (`Recorder`), read by the grader (`read_trace`). The file is untrusted input
for the reader: sizes are fixed and every field is checked.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_HEADER = struct.Struct("<8sQ")
_RECORD = struct.Struct("<24sBxxxiiqddiiQ")
_END_OFFSET = struct.calcsize("<24sBxxxiiqd")
_NAME_BYTES = 24
_MAGIC = b"DLTRACE2"
CAPACITY = 4096
FILE_SIZE = _HEADER.size + CAPACITY * _RECORD.size

BLOCKING, POSTED, COLLECTIVE, POSTED_COLLECTIVE = 0, 1, 2, 3
EVERYTHING = -1
_UNFINISHED = -1.0


@dataclass(frozen=True)
class TraceRecord:
    """One operation. start, end: seconds of the machine's monotonic clock; end None: unfinished.

    way: BLOCKING | POSTED (a non-blocking call; its end is when its completion was seen) |
    COLLECTIVE | POSTED_COLLECTIVE. peer: rank in the job, -1 none, -2 any. index: position in the
    rank's history. members: for a collective, a bit for each rank of the job that takes part, 0
    unknown. awaits: for a wait, index of the posted operation it waits for, or EVERYTHING posted.
    """

    index: int
    operation: str
    way: int
    peer: int
    tag: int
    bytes: int
    start: float
    end: float | None
    line: int
    members: int = 0
    awaits: int = EVERYTHING


class Recorder:
    """Writes records; made once per rank."""

    def __init__(self, path: Path, source_folder: str) -> None:
        with path.open("wb+") as stream:
            stream.truncate(FILE_SIZE)
            self._map = mmap.mmap(stream.fileno(), FILE_SIZE)
        self._source_folder = source_folder
        self._count, self._lock = 0, threading.Lock()
        _HEADER.pack_into(self._map, 0, _MAGIC, 0)

    def begin(
        self,
        operation: str,
        way: int,
        peer: int = -1,
        tag: int = -1,
        size: int = 0,
        *,
        members: int = 0,
        awaits: int = EVERYTHING,
    ) -> int:
        """Note the start of an operation; return its index for `finish`."""
        name, line = operation.encode()[:_NAME_BYTES], self._line()
        tag = tag if -(2**31) <= tag < 2**31 else -1
        with self._lock:
            index = self._count
            self._count += 1
            _RECORD.pack_into(
                self._map,
                _HEADER.size + index % CAPACITY * _RECORD.size,
                name,
                way,
                peer,
                tag,
                size,
                time.monotonic(),
                _UNFINISHED,
                line,
                awaits,
                members,
            )
            _HEADER.pack_into(self._map, 0, _MAGIC, self._count)
        return index

    def finish(self, index: int) -> None:
        """Note the end of operation `index`; nothing happens if it was overwritten already."""
        if index + CAPACITY > self._count:
            offset = _HEADER.size + index % CAPACITY * _RECORD.size + _END_OFFSET
            struct.pack_into("<d", self._map, offset, time.monotonic())

    def _line(self) -> int:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._source_folder):
                return frame.f_lineno
            frame = frame.f_back
        return 0


def member_bits(ranks: Iterable[int]) -> int:
    """The `members` of a collective among `ranks`; 0, unknown, when they are too many to note."""
    bits = 0
    for rank in ranks:
        if not 0 <= rank < 64:
            return 0
        bits |= 1 << rank
    return bits


def read_trace(content: bytes) -> tuple[TraceRecord, ...]:
    """Records of a trace file, oldest first. Returns () for anything malformed."""
    if len(content) != FILE_SIZE:
        return ()
    magic, count = _HEADER.unpack_from(content, 0)
    if magic != _MAGIC or count > 2**40:
        return ()
    records = []
    for index in range(max(0, count - CAPACITY), count):
        fields = _RECORD.unpack_from(content, _HEADER.size + index % CAPACITY * _RECORD.size)
        name, way, peer, tag, size, start, end, line, awaits, members = fields
        if (
            way > POSTED_COLLECTIVE
            or not math.isfinite(start)
            or not math.isfinite(end)
            or start < 0
        ):
            continue
        text = name.rstrip(b"\0").decode("ascii", errors="replace")
        operation = "".join(c for c in text if c.isalnum() or c in "_- ")
        finished = end if end >= start else None
        records.append(
            TraceRecord(
                index, operation, way, peer, tag, size, start, finished, line, members, awaits
            )
        )
    return tuple(records)
