"""Serve one cluster on one remote machine, over the standard input and output of an ssh session.

It makes a scratch folder, answers requests, and when the session ends, for whatever reason, ends
every process it started and removes the folder. A frame, both ways: u32 length of a JSON header,
u64 length of a payload, then both. The program arrives over the session too (see BOOT in
ssh_connection.py), so nothing needs to be installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from cluster.backends.ssh_remote import residents

MAGIC = b"\0distlab-agent-1\n"
HEAD = struct.Struct(">IQ")
_PREFIX = "distlab-ssh-"
_MOST_NAMES = 10_000
_PERIOD_US = 20_000
_PR_SET_DUMPABLE = 4


class Refusal(Exception):
    """A request that cannot be fulfilled. kind: absent, oversized, unfit or failed."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Agent:
    """One cluster's share of this machine. Every method without an underscore is a request."""

    def __init__(self, residents_source: str) -> None:
        # Staged files hide in the descriptors of this process, from programs of the same user.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
        _remove_leftovers(Path(tempfile.gettempdir()))
        self._root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (self._root / "owner").write_text(f"{os.getpid()} {_start_of(os.getpid())}")
        for name in ("in", "out", "tmp", residents.COMMANDS):
            (self._root / name).mkdir()
        (self._root / "residents.py").write_text(residents_source)
        self._has_cgroup = residents.make_cgroup(self._root)
        self._staged: dict[str, int | bytes] = {}
        self._commands = 0

    def hello(self) -> dict[str, Any]:
        return {"root": str(self._root), "python": sys.executable}

    def file(self, path: str, payload: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(payload)

    def folder(self, path: str) -> None:
        (self._root / path).mkdir(parents=True, exist_ok=True)

    def stage(self, name: str, payload: bytes) -> None:
        self._unstage(name)
        try:  # a file without a name: nobody can open it, and to reveal it takes no time
            descriptor = os.open(self._root, os.O_TMPFILE | os.O_RDWR, 0o644)
        except OSError:  # not on every file system
            self._staged[name] = payload
            return
        with os.fdopen(descriptor, "wb", closefd=False) as stream:
            stream.write(payload)
        self._staged[name] = descriptor

    def reveal(self, names: list[str]) -> None:
        for name in names:
            staged = self._staged.pop(name)
            partial = self._root / residents.COMMANDS / "revealed"
            if isinstance(staged, int):
                root = os.open(self._root, os.O_PATH)
                # With a folder's descriptor Python uses linkat, which follows the link in /proc.
                os.link(f"/proc/self/fd/{staged}", partial, dst_dir_fd=root)
                os.close(root)
                os.close(staged)
            else:
                partial.write_bytes(staged)
            partial.rename(self._root / "in" / name)

    def size(self, name: str) -> dict[str, Any]:
        try:
            status = (self._root / "out" / name).lstat()
        except OSError:
            return {"size": None}
        return {"size": status.st_size if stat.S_ISREG(status.st_mode) else None}

    def fetch(self, name: str, limit: int) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._root / "out" / name, flags)
        except OSError:
            raise Refusal("absent", name) from None
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Refusal("absent", name)
            if status.st_size > limit:
                text = f"{name} has {status.st_size} bytes, more than {limit}"
                raise Refusal("oversized", text)
            return stream.read(limit)

    def names(self) -> dict[str, Any]:
        found: list[str] = []
        with os.scandir(self._root / "out") as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) >= _MOST_NAMES:
                    break
        return {"names": sorted(found)}

    def remove(self, prefix: str) -> None:
        for name in [n for n in self._staged if n.startswith(prefix)]:
            self._unstage(name)
        for folder in ("in", "out"):
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith(prefix) and not entry.is_dir(follow_symlinks=False):
                        Path(entry.path).unlink()

    def prepare(self, command: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Write a command down for `residents.py run`: it then passes through no shell."""
        self._commands += 1
        text = json.dumps({"command": command, "environment": environment})
        (self._root / residents.COMMANDS / str(self._commands)).write_text(text)
        return {"number": self._commands}

    def signal(self, number: int) -> None:
        residents.signal_all(self._root, number)

    def end(self) -> None:
        if left := residents.end_all(self._root):
            raise Refusal("failed", f"processes {left} do not end")

    def processes(self) -> dict[str, Any]:
        return {"pids": residents.processes_of(self._root)}

    def set_cpus(self, cpus: float | None) -> None:
        if not self._has_cgroup:
            raise Refusal("unfit", "CPU quotas need control groups, which only root may make there")
        quota = -1 if cpus is None else max(1000, round(cpus * _PERIOD_US))
        for folder in residents.cgroups_of(self._root):
            words = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota)}
            if (folder / "cpu.max").exists():
                words = {"cpu.max": f"{'max' if quota < 0 else quota} {_PERIOD_US}"}
            for name, word in words.items():
                (folder / name).write_text(word)

    def counters(self, interface: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        folder = Path("/sys/class/net") / interface
        for name in ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets", "mtu"):
            try:
                file = folder / name if name == "mtu" else folder / "statistics" / name
                values[name] = int(file.read_text())
            except OSError:
                raise Refusal("unfit", f"there is no network interface {interface!r}") from None
        for name in ("snmp", "netstat"):
            values[name] = (Path("/proc/net") / name).read_text()
        return values

    def tc(self, arguments: list[str], sudo: bool) -> bytes:
        command = [*(["sudo", "-n"] if sudo and os.geteuid() else []), "tc", *arguments]
        environment = {**os.environ, "LC_ALL": "C"}
        environment["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=20,
                env=environment,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode(errors="replace").strip()
            raise Refusal("unfit", f"`{' '.join(command)}`: {reason}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal("unfit", f"`{' '.join(command)}`: {error}") from None
        return done.stdout

    def _unstage(self, name: str) -> None:
        staged = self._staged.pop(name, None)
        if isinstance(staged, int):
            os.close(staged)

    def _serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
        while len(head := requests.read(HEAD.size)) == HEAD.size:
            header_length, payload_length = HEAD.unpack(head)
            header, payload = requests.read(header_length), requests.read(payload_length)
            if len(payload) < payload_length:
                return
            request = json.loads(header)
            result: dict[str, Any] | bytes | None
            try:
                if request["payload"]:
                    request["arguments"]["payload"] = payload
                result = getattr(self, request["operation"])(**request["arguments"])
            except Refusal as refusal:
                result = {"refused": refusal.kind, "text": str(refusal)}
            except Exception as error:
                result = {"refused": "failed", "text": f"{type(error).__name__}: {error}"}
            body = result if isinstance(result, bytes) else b""
            encoded = json.dumps({} if isinstance(result, bytes) else result or {}).encode()
            answers.write(HEAD.pack(len(encoded), len(body)) + encoded + body)
            answers.flush()


def _start_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _remove_leftovers(parent: Path) -> None:
    """Remove what agents that were killed left behind, and nothing else."""
    for root in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            if root.lstat().st_uid != os.geteuid():
                continue
            pid, start = (root / "owner").read_text().split()
            if _start_of(int(pid)) != start:
                residents.remove(root)


def main(residents_source: str) -> None:
    """Serve until the session ends."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    agent = Agent(residents_source)
    try:
        sys.stdout.buffer.write(MAGIC)
        sys.stdout.buffer.flush()
        agent._serve(sys.stdin.buffer, sys.stdout.buffer)
    except OSError:
        pass
    finally:
        residents.remove(agent._root)
