"""The few Linux system calls that Python 3.11 does not offer: namespaces, prctl, mount."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
LAST_CAPABILITY = 40
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces. Raises OSError."""
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Join the namespaces of a namespace file or of a pidfd. Raises OSError."""
    _checked(_libc.setns(fd, flags), "setns")


def prctl(option: int, argument: int = 0, argument3: int = 0) -> None:
    """Call prctl(2) with up to two integer arguments. Raises OSError."""
    _checked(
        _libc.prctl(
            option,
            ctypes.c_ulong(argument),
            ctypes.c_ulong(argument3),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        ),
        f"prctl({option})",
    )


def mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
    """Call mount(2). Raises OSError naming the target."""
    _checked(
        _libc.mount(source.encode(), target.encode(), fstype.encode(), flags, data.encode()),
        f"mount {target}",
    )


def unmount(target: str) -> None:
    """Detach the mount at `target`. Raises OSError."""
    mnt_detach = 2
    _checked(_libc.umount2(target.encode(), mnt_detach), f"umount {target}")


def drop_capabilities() -> None:
    """Give up every capability for good: bounding, ambient, permitted, effective, inheritable."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # this kernel knows fewer capabilities
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    empty_sets = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(header, empty_sets), "capset")


def install_seccomp(program: bytes) -> None:
    """Install a classic-BPF seccomp filter (array of struct sock_filter). Raises OSError."""

    class FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    holder = FilterProgram(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(holder))


def bring_up_loopback() -> None:
    """Set `lo` of the caller's network namespace up."""
    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", up_and_running))
