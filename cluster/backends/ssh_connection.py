"""One ssh connection to one machine: the agent's requests and answers, and programs beside them.

The session that carries the agent is also the master of the connection (ControlMaster), so a
program started on the machine opens a channel of it and no connection of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from cluster.backends.ssh_remote import agent, residents
from cluster.interface import ClusterError, OversizedFile, Unfit
from cluster.inventory import Machine

_CONNECT_TIMEOUT_S = 20.0
_REQUEST_TIMEOUT_S = 60.0
_MOST_BANNER = 65536
_END_TIMEOUT_S = 5.0
# The real program comes over standard input: its length in a line, then itself.
_BOOT = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
_LOADER = """
import types
for name, source in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(compile(source, name, "exec"), module.__dict__)
module.main({residents!r})
"""


class SshConnection:
    """A machine that is connected. Raises ClusterError from every method when it is lost."""

    def __init__(self, machine: Machine, known_hosts: Path | None, folder: Path) -> None:
        """Connect; `folder` is a private folder with a short path, for sockets and messages."""
        self.machine = machine
        self._control = folder / f"{machine.name}.ctl"
        self._errors = folder / f"{machine.name}.err"
        self._known_hosts = known_hosts
        self._lock = threading.Lock()
        self._unread = b""
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    *self._ssh("ControlMaster=yes", "ControlPersist=no"),
                    f"exec {shlex.quote(machine.python)} -I -S -c {shlex.quote(_BOOT)}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        try:
            self._boot()
            greeting, _ = self.request("hello")
        except BaseException:
            self.close()
            raise
        self.root, self.python = str(greeting["root"]), str(greeting["python"])

    def request(
        self, operation: str, payload: bytes | memoryview | None = None, **arguments: object
    ) -> tuple[dict[str, Any], bytes]:
        """Let the agent do `operation`; return its answer, a JSON object and bytes.

        Raises what the answer says: Unfit, FileNotFoundError, OversizedFile, ClusterError.
        """
        header = {
            "operation": operation,
            "arguments": arguments,
            "payload": payload is not None,
        }
        encoded, body = json.dumps(header).encode(), payload or b""
        with self._lock:
            deadline = time.monotonic() + _REQUEST_TIMEOUT_S
            self._write(agent.HEAD.pack(len(encoded), memoryview(body).nbytes) + encoded)
            self._write(body)
            head = self._read(agent.HEAD.size, deadline)
            header_length, payload_length = agent.HEAD.unpack(head)
            answer = json.loads(self._read(header_length, deadline))
            result = self._read(payload_length, deadline)
        if "refused" in answer:
            kinds = {"unfit": Unfit, "absent": FileNotFoundError, "oversized": OversizedFile}
            text = answer["text"]
            kind = kinds.get(answer["refused"], ClusterError)
            raise kind(text if kind is FileNotFoundError else f"{self.machine.name}: {text}")
        return answer, result

    def start(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        stdin: int | IO[bytes] | None,
        stdout: int | IO[bytes] | None,
        stderr: int | IO[bytes] | None,
    ) -> subprocess.Popen[bytes]:
        """Start a program. When the local process ends, the remote one does, and vice versa."""
        answer, _ = self.request("prepare", command=list(command), environment=environment)
        return subprocess.Popen(
            [*self._ssh("ControlMaster=no"), self._residents("run", str(answer["number"]))],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    def launcher_line(self) -> str:
        """Shell code that runs the command in `$hex`, hexadecimal shell code, on the machine."""
        remote = shlex.quote(self._residents("shell", ""))
        return f'exec {shlex.join(self._ssh("ControlMaster=no"))} {remote}"$hex"'

    def lost(self) -> bool:
        """Whether the connection or the agent has ended."""
        if self._process.poll() is not None or self._process.stdout is None:
            return True
        # While a program's channel is open, ssh outlives the agent whose output it carried.
        poller = select.poll()
        poller.register(self._process.stdout, 0)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Let the agent clean up, then disconnect."""
        assert self._process.stdin is not None and self._process.stdout is not None
        agent_is_gone = self.lost()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(0 if agent_is_gone else _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ssh(self, *extra: str) -> list[str]:
        machine = self.machine
        options = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", *extra]
        options += ["ForwardAgent=no", "ForwardX11=no", "LogLevel=ERROR"]
        options.append(f"ControlPath={_quoted(self._control)}")
        if machine.identity_file is not None:
            options += ["IdentitiesOnly=yes", f"IdentityFile={_quoted(machine.identity_file)}"]
        if self._known_hosts is not None:
            options.append(f"UserKnownHostsFile={_quoted(self._known_hosts)}")
        command = ["ssh", "-T", "-p", str(machine.port)]
        for option in options:
            command += ["-o", option]
        if machine.user is not None:
            command += ["-l", machine.user]
        return [*command, "--", machine.address]

    def _residents(self, kind: str, what: str) -> str:
        program = [self.python, "-I", "-S", f"{self.root}/residents.py", kind, self.root]
        return f"exec {shlex.join(program)} {what}"

    def _boot(self) -> None:
        parts = residents.__name__.split(".")
        packages = [(".".join(parts[:count]), "") for count in range(1, len(parts))]
        own = [(m.__name__, Path(str(m.__file__)).read_text()) for m in (residents, agent)]
        program = _LOADER.format(sources=[*packages, *own], residents=own[0][1]).encode()
        self._write(b"%d\n" % len(program) + program)
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        seen = b""
        while agent.MAGIC not in seen:  # a login shell may say something first
            if len(seen) > _MOST_BANNER:
                raise ClusterError(f"{self.machine.name}: its login shell prints without end")
            seen += self._receive(deadline)
        self._unread = seen.partition(agent.MAGIC)[2]

    def _write(self, data: bytes | memoryview) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._loss() from error

    def _read(self, count: int, deadline: float) -> bytes:
        parts, missing = [self._unread], count - len(self._unread)
        while missing > 0:
            parts.append(self._receive(deadline))
            missing -= len(parts[-1])
        data = b"".join(parts)
        self._unread = data[count:]
        return data[:count]

    def _receive(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        left = max(0.0, deadline - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            raise ClusterError(f"{self.machine.name} does not answer")
        data = os.read(descriptor, 1 << 20)
        if not data:
            raise self._loss()
        return data

    def _loss(self) -> ClusterError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else "the connection ended"
        trial = ["ssh", "-p", str(self.machine.port)]
        trial += ["-l", self.machine.user] if self.machine.user else []
        trial += [self.machine.address, "true"]
        return ClusterError(f"{self.machine.name}: {reason}; try `{shlex.join(trial)}`")


def _quoted(path: Path) -> str:
    """A path as ssh reads it in a configuration: in quotes, its own expansions switched off."""
    text = str(path).replace("%", "%%")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
