"""The frames that host and guest kernel exchange over the guest's console. Imported by both.

    u32 length of the rest | one byte of kind | payload

    host   M  paths of kernel modules to load, NUL between them
           N  netlink requests, one behind the other
           +  part of a payload that goes on in the next frame
    guest  k  done; the payload is the answers
           r  refused: u32 errno, u32 position of the request
           x  failed: a traceback

The host waits for the answer to each frame and sends none above FRAME_BYTES: the console's line
discipline stalls for good once 4 kB lie unread in it.
"""

from __future__ import annotations

import struct

FRAME_BYTES = 2048
HEAD = struct.Struct("=IB")
REFUSAL = struct.Struct("=II")


def pack(kind: bytes, payload: bytes) -> bytes:
    """One frame."""
    return HEAD.pack(len(payload) + 1, kind[0]) + payload
