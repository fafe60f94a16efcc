"""Process 1 of the guest kernel: hands netlink requests from the console to the guest's rtnetlink.

Runs by itself under a bare interpreter (`python -I -S`) with only `frames.py` and `netlink.py`
beside it; never imported. It holds no policy and no state: the host composes every message.
"""

from __future__ import annotations

import ctypes
import os
import sys
import termios
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import frames  # type: ignore[import-not-found]
import netlink  # type: ignore[import-not-found]

_CONSOLE = "/dev/tty1"
_FINIT_MODULE = 313
_COMPRESSED = 4
_POWER_OFF = 0x4321FEDC


def _raw_console() -> int:
    console = os.open(_CONSOLE, os.O_RDWR | os.O_NOCTTY)
    mode = termios.tcgetattr(console)
    mode[0] = mode[1] = mode[3] = 0
    mode[2] |= termios.CS8 | termios.CREAD
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(console, termios.TCSANOW, mode)
    return console


def _read(console: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(console, count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _write(console: int, kind: bytes, payload: bytes) -> None:
    data = frames.pack(kind, payload)
    while data:
        data = data[os.write(console, data) :]


def _load_module(libc: ctypes.CDLL, path: bytes) -> None:
    flags = 0 if path.endswith(b".ko") else _COMPRESSED
    opened = os.open(path, os.O_RDONLY)
    result = libc.syscall(_FINIT_MODULE, opened, b"", flags)
    os.close(opened)
    number = ctypes.get_errno()
    already_loaded = 17
    if result and number != already_loaded:
        raise OSError(number, os.strerror(number), path)


def _serve(console: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    routes = netlink.open_route_socket()
    _write(console, b"k", os.uname().release.encode())
    begun = b""
    while True:
        length, kind = frames.HEAD.unpack(_read(console, frames.HEAD.size))
        payload = begun + _read(console, length - 1)
        begun = payload if kind == ord("+") else b""
        try:
            answers = b""
            if kind == ord("M"):
                for path in filter(None, payload.split(b"\0")):
                    _load_module(libc, path)
            elif kind == ord("N"):
                answers = netlink.converse(routes, payload)
            _write(console, b"k", answers)
        except netlink.NetlinkRefused as refusal:
            _write(console, b"r", frames.REFUSAL.pack(refusal.errno, refusal.position))
        except Exception:
            _write(console, b"x", traceback.format_exc().encode())


def main() -> None:
    """Serve until the console closes, which means that the host's side has gone; then power off."""
    try:
        _serve(_raw_console())
    except (EOFError, OSError):
        pass
    finally:
        ctypes.CDLL(None).reboot(_POWER_OFF)


if __name__ == "__main__":
    main()
