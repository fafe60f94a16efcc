"""Start torch ranks with an interpreter each: for hosts that nothing can be forked into."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

from cluster.interface import ClusterError, Host
from cluster.launchers.program import Program

_STORE_TIMEOUT_S = 60.0
_RANK_PROGRAM = Path(__file__).with_name("rank_program.py")
_RUN_AS_MAIN = (
    "\nimport json\nrun_as_main(environment=os.environ.copy(), **json.loads(sys.argv[1]))\n"
)
_SERVE_STORE = """
import socket, sys
from torch.distributed import TCPStore
listener = socket.create_server((sys.argv[1], 0), backlog=1024)
port = listener.getsockname()[1]
store = TCPStore(sys.argv[1], port, is_master=True, wait_for_workers=False,
                 master_listen_fd=listener.detach())
print(port, flush=True)
sys.stdin.read()
"""


class ColdStore:
    """A rendezvous store in a process of its own; it ends with the one that started it."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _SERVE_STORE, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        readable = select.select([self._process.stdout], [], [], _STORE_TIMEOUT_S)[0]
        line = self._process.stdout.readline() if readable else b""
        if not line.strip().isdigit():
            self.kill()
            raise ClusterError(
                f"no rendezvous store on {address}: is it an address of this machine, and is "
                "torch installed?"
            )
        self.port = int(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class ColdStarter:
    """Starts each rank through `Host.start`, with the host's own interpreter."""

    def start_rank(
        self, host: Host, program: Program, *, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start `program` on `host`. Raises ClusterError when the host is down."""
        request = {
            "program": program.path,
            "arguments": list(program.arguments),
            "search_path": list(program.search_path),
        }
        # The same code as in a forked rank, so that a program cannot tell the two apart by how
        # it ends: torch now and then aborts in the interpreter's teardown, which this leaves out.
        code = _RANK_PROGRAM.read_text() + _RUN_AS_MAIN
        command = [host.python, "-I", "-X", "utf8", "-c", code, json.dumps(request)]
        return host.start(command, env=program.environment, stdout=stdout, stderr=stderr)

    def start_store(self, address: str) -> ColdStore:
        """Start a store on `address` of this machine. Raises ClusterError."""
        return ColdStore(address)
