"""Make functions of the MPI library unusable in this process, by whatever name they are reached.

A method of a class can be gone round: the base class has it too, and so have other communicators.
Here the first bytes of the C function itself are replaced by a jump to one that notes the use and
returns an error. mpi4py, its every class, and a foreign function call all end there. Communicators
are still made, since the library goes round its own entry points.

Not a wall: who may write machine code can put the bytes back. What a library's collective sends is
seen outside of the host all the same (cluster/network/mpi_messages.py).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from mpi4py import MPI

from grader.rank.refusal import RefusedCall, refusal

_READ_EXECUTE, _WRITE = 5, 2


class Seal:
    """Functions of the MPI library that may not be called. refused_use: what was, so far."""

    def __init__(self, names: Collection[str], source: str) -> None:
        """names: methods of mpi4py; MPI_Allreduce goes by "Allreduce". source: the learner's
        folder, for the line. What the library does not have is left out."""
        self.refused_use: RefusedCall | None = None
        self._source, self._kept = source, []  # type: str, list[Any]
        # mpi4py has loaded the library; this only finds it.
        library = ctypes.CDLL(_loaded_library())
        for name in sorted(name for name in names if name[:1].isupper()):
            for prefix in ("PMPI_", "MPI_"):
                function = getattr(library, f"{prefix}{name}", None)
                if function is not None:
                    self._close(function, name)

    def _close(self, function: Any, name: str) -> None:
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        instead = ctypes.CFUNCTYPE(ctypes.c_int)(self._noting(name))
        self._kept.append(instead)
        target = ctypes.cast(instead, ctypes.c_void_p).value
        assert target is not None
        code = _jump(target)
        page = address & -mmap.PAGESIZE
        length = address + len(code) - page
        _protect(page, length, _READ_EXECUTE | _WRITE)
        ctypes.memmove(address, code, len(code))
        _protect(page, length, _READ_EXECUTE)

    def _noting(self, name: str) -> Callable[[], int]:
        def note() -> int:
            if self.refused_use is None:
                frames = [
                    f"{Path(frame.filename).name}:{frame.lineno}"
                    for frame in traceback.extract_stack()
                    if frame.filename.startswith(self._source)
                ]
                self.refused_use = refusal(name, frames[-1] if frames else "")
            return int(MPI.ERR_OTHER)

        return note


def _loaded_library() -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if Path(path).name.startswith("libmpi.so"):
            return path
    return ""  # the program itself and all that it has loaded


def _jump(target: int) -> bytes:
    """Machine code that goes on at `target` without touching an argument."""
    if os.uname().machine == "x86_64":
        return b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"  # mov rax, target; jmp rax
    return b"\x50\x00\x00\x58\x00\x02\x1f\xd6" + struct.pack("<Q", target)  # ldr x16, .+8; br x16


def _protect(page: int, length: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(length), protection):
        number = ctypes.get_errno()
        raise OSError(number, f"mprotect: {os.strerror(number)}")
