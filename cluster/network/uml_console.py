"""The host's end of the guest kernel's console, and what is sent over it at boot."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.network import frames
from cluster.network.errors import EngineError
from cluster.network.netlink import NetlinkRefused, split

_ANSWER_S, _LOOK_S = 10.0, 0.2


def module_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Module files to load, in order, with all they depend on.

    `folder` holds modules.dep. Raises EngineError when a module or the folder is missing.
    """
    try:
        lines = (folder / "modules.dep").read_text().splitlines()
    except OSError as error:
        raise EngineError(f"UML's kernel modules are not at {folder}: {error}") from error
    needs = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    by_stem = {Path(name).name.partition(".")[0]: name for name in needs}
    ordered: dict[str, None] = {}

    def require(name: str) -> None:
        for other in needs[name]:
            require(other)
        ordered[name] = None

    for stem in names:
        if stem not in by_stem:
            raise EngineError(f"UML's kernel has no module {stem} in {folder}")
        require(by_stem[stem])
    return [folder / name for name in ordered]


class ConsoleChannel:
    """The guest's rtnetlink at the other end of its console."""

    def __init__(self, console: socket.socket, dead: Callable[[], bool]) -> None:
        """`dead` says whether the guest's process has ended: a killed one does not hang up."""
        self._console = console
        self._dead = dead

    def hello(self, timeout_s: float) -> str:
        """Wait for the guest to start; return its kernel version. Raises EngineError."""
        return self._receive(timeout_s).decode()

    def load_modules(self, files: Sequence[Path]) -> None:
        """Load kernel modules into the guest. Raises EngineError."""
        self._ask(b"M", b"\0".join(str(file).encode() for file in files))

    def exchange(self, requests: Sequence[bytes]) -> list[bytes]:
        """Carry out rtnetlink requests in order. Raises NetlinkRefused, EngineError."""
        return list(split(self._ask(b"N", b"".join(requests))))

    def close(self) -> None:
        """Hang up: the guest powers itself off."""
        self._console.close()

    def _ask(self, kind: bytes, payload: bytes) -> bytes:
        room = frames.FRAME_BYTES - frames.HEAD.size
        while len(payload) > room:
            self._send(b"+", payload[:room])
            self._receive(_ANSWER_S)
            payload = payload[room:]
        self._send(kind, payload)
        return self._receive(_ANSWER_S)

    def _send(self, kind: bytes, payload: bytes) -> None:
        try:
            self._console.sendall(frames.pack(kind, payload))
        except OSError as error:
            raise EngineError(f"the UML switch has gone: {error}") from error

    def _receive(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        length, kind = frames.HEAD.unpack(self._read(frames.HEAD.size, deadline))
        payload = self._read(length - 1, deadline)
        if kind == ord("r"):
            raise NetlinkRefused(*frames.REFUSAL.unpack(payload))
        if kind == ord("x"):
            raise EngineError(f"the UML switch failed: {payload.decode().splitlines()[-1]}")
        return payload

    def _read(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                self._console.settimeout(_LOOK_S)
                part = self._console.recv(count - len(data))
            except TimeoutError as error:
                if self._dead():
                    raise EngineError("the UML switch has died") from error
                if time.monotonic() > deadline:
                    self.close()  # a late answer would be taken for that to another question
                    raise EngineError("the UML switch does not answer") from error
                continue
            except OSError as error:
                raise EngineError(f"the UML switch does not answer: {error}") from error
            if not part:
                raise EngineError("the UML switch has gone")
            data += part
        return bytes(data)
