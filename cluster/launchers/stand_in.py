"""What mpirun's daemon starts in place of a rank: has the host's rank forker fork the rank, and
ends as the rank does.

    python -I -S -c TEXT PROGRAM ARGUMENT ...

A rank costs an interpreter that imports numpy and mpi4py; this costs an interpreter that imports
next to nothing, hence the modules with an underscore.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys
import time

# Abstract: it belongs to the host's own network namespace, and no file is left behind.
ADDRESS = b"\0distlab-ranks"
PATIENCE_S = 20.0
POLL_S = 0.002


def connect() -> _socket.socket:
    """Connect to the rank forker, which may still be starting. Raises OSError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            channel.connect(ADDRESS)
            return channel
        except OSError:
            channel.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def main() -> None:
    """Hand everything over and wait for the rank's end."""
    command = [os.fsencode(word) for word in sys.argv[1:]]
    variables = [name + b"=" + value for name, value in os.environb.items()]
    request = b"\0".join([b"%d" % len(command), *command, *variables])
    streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in range(3))
    channel = connect()
    channel.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    status = int(channel.recv(64) or 127)
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
