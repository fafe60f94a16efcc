"""The system-call filter under which everything on a host runs.

A deny list: a rank may compute, open sockets and use threads, but may not make namespaces,
mount, trace other processes, load kernel code, or use interfaces (io_uring, vsock, packet sockets,
locks on shared files) that go round the network that is being counted.
"""

from __future__ import annotations

import errno
import os
import struct

_LOAD_WORD, _JUMP_EQUAL, _JUMP_SET, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARG0_OFFSET = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NAMESPACE_FLAGS = 0x7E020080
_X32_BIT = 0x40000000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16

# name -> (x86_64, aarch64)
_DENIED = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "fsconfig": (431, 431),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # Hosts share the files of the system: who watches, locks or looks into the cache of one, has
    # a wire to the others that no link delays and nobody counts.
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "flock": (73, 32),
    "cachestat": (451, 451),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "syslog": (103, 116),
}
_INOTIFY_INIT = 253  # on x86_64 alone
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def build_filter(machine: str | None = None) -> bytes:
    """Return the BPF program for `machine` (default: this one).

    Raises ValueError for an architecture whose system-call numbers are not listed here.
    """
    machine = machine or os.uname().machine
    if machine not in _ARCH:
        raise ValueError(
            f"no system-call filter for architecture {machine!r}; known: {sorted(_ARCH)}"
        )
    column, audit_arch = _ARCH[machine]
    refuse = _statement(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _statement(_LOAD_WORD, _ARCH_OFFSET),
        _jump(_JUMP_EQUAL, audit_arch, 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD_WORD, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        program += [_jump(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), refuse]
    if machine == "x86_64":
        program += [_jump(_JUMP_EQUAL, _INOTIFY_INIT, 0, 1), refuse]
    for numbers in _DENIED.values():
        program += [_jump(_JUMP_EQUAL, numbers[column], 0, 1), refuse]
    # clone3 hides its flags behind a pointer; ENOSYS makes glibc fall back to clone.
    program += [
        _jump(_JUMP_EQUAL, _CLONE3[column], 0, 1),
        _statement(_RETURN, _ERRNO | errno.ENOSYS),
        _jump(_JUMP_EQUAL, _CLONE[column], 0, 4),
        _statement(_LOAD_WORD, _ARG0_OFFSET),
        _jump(_JUMP_SET, _NAMESPACE_FLAGS & 0xFFFFFFFF, 0, 1),
        refuse,
        _statement(_RETURN, _ALLOW),
    ]
    families = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
    program += [
        _jump(_JUMP_EQUAL, _SOCKET[column], 0, 2 + len(families)),
        _statement(_LOAD_WORD, _ARG0_OFFSET),
    ]
    program += [
        _jump(_JUMP_EQUAL, family, len(families) - i, 0) for i, family in enumerate(families)
    ]
    program += [refuse, _statement(_RETURN, _ALLOW)]
    return b"".join(program)
