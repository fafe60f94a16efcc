"""One emulated host: a bubblewrap sandbox on this machine, as seen from the enclosure."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from cluster import block_disk, cgroup, sandbox
from cluster.backends.netns_wiring import DATA_MTU, Wiring, control_address, data_address
from cluster.enter import HostRecord
from cluster.interface import ClusterError, Host, Traffic, Unfit
from cluster.mailbox import FolderMailbox
from cluster.network.counters import LinkMeter
from cluster.network.errors import EngineError
from cluster.network.tcp_repeats import RepeatMeter

_DISK_PROBE_S = 0.5
AGENT = sandbox.RUN / "agent"


class NetnsHost(Host):
    """One sandbox. Made by NetnsCluster."""

    def __init__(
        self,
        index: int,
        slots: int,
        folders: sandbox.HostFolders,
        process: subprocess.Popen[bytes],
        record: HostRecord,
        group: cgroup.HostCgroup | None,
        wiring: Wiring,
    ) -> None:
        self.name, self.index, self.slots = record.name, index, slots
        self.data_address = data_address(index)
        self.control_address = control_address(index)
        self.folders = folders
        self.python = sys.executable
        self.mailbox = FolderMailbox(folders.staging, folders.inbox, folders.outbox)
        self.record = record
        self._process, self._group, self._wiring = process, group, wiring
        self._meter, self._repeats = LinkMeter(record.name), RepeatMeter(record.name, DATA_MTU)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        extra = [f"--env={key}={value}" for key, value in (env or {}).items()]
        return subprocess.Popen(
            [str(AGENT), *extra, self.name, *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=sandbox.HEAD_ENVIRONMENT,
        )

    def path(self, name: str) -> str:
        return f"/distlab/{name}"

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._signal_first(signal.SIGKILL)
        self._process.wait()

    def signal_end(self) -> None:
        """Begin to end the host; `close` waits for it."""
        if self._group is not None:
            with contextlib.suppress(ClusterError, OSError):
                self._group.freeze(False)
        self._signal_first(signal.SIGKILL)

    def pause(self) -> None:
        if self._group is not None:
            self._group.freeze(True)
        else:
            self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        if self._group is not None:
            self._group.freeze(False)
        else:
            self._signal_all(signal.SIGCONT)

    def set_cpus(self, cpus: float | None) -> None:
        if self._group is None:
            raise Unfit("CPU quotas need control groups, which this user may not make; run as root")
        self._group.set_cpus(cpus)

    def fill_disk(self) -> None:
        fillers = self.folders.disk / "full"
        fillers.mkdir()
        # The last blocks of all may be out of one file's reach.
        for number, size in enumerate((1 << 20, 4096, 4096, 4096)):
            filler = fillers / str(number)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(size))
        if filler.exists() and filler.stat().st_size:
            raise Unfit(f"the disk of {self.name} could not be filled")

    def free_disk(self) -> None:
        shutil.rmtree(self.folders.disk / "full", ignore_errors=True)

    def slow_disk(self, bytes_per_s: float | None) -> str:
        disk = block_disk.device(self.folders.disk)
        if self._group is None or disk.startswith("0:"):
            raise Unfit(f"the disk of {self.name} is memory; have it made with `--block-disk`")
        self._group.set_disk_rate(disk, bytes_per_s)
        return "" if bytes_per_s is None else self._probe_disk(bytes_per_s)

    def _probe_disk(self, bytes_per_s: float) -> str:
        """Write and sync what takes half a second at this speed, as a rank would."""
        size = max(65536, round(bytes_per_s * _DISK_PROBE_S))
        code = (
            "import os, sys, time\nf = open('/tmp/.probe', 'wb')\nos.unlink(f.name)\n"
            f"f.write(bytes({size}))\nf.flush()\nbegan = time.monotonic()\n"
            "os.fsync(f.fileno())\nprint(time.monotonic() - began)"
        )
        probe = self.start([self.python, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
        words = probe.communicate()[0].split()
        if probe.returncode or not words:
            raise Unfit(f"the disk of {self.name} could not be probed")
        seen = size / max(float(words[0]), 1e-6)
        if seen > 1.5 * bytes_per_s:
            raise Unfit(
                f"the disk of {self.name} took {seen / 1e6:.3g} MB/s where {bytes_per_s / 1e6:.3g} "
                "were to be the most"
            )
        return f"{self.name} synced {size / 1e6:.3g} MB at {seen / 1e6:.3g} MB/s"

    def processes(self) -> list[int]:
        namespace = _pid_namespace(self.record.pid)
        return [
            int(entry)
            for entry in os.listdir("/proc")
            if entry.isdigit()
            and int(entry) != self.record.pid
            and namespace is not None
            and _pid_namespace(int(entry)) == namespace
        ]

    def kill_process(self, pid: int) -> None:
        # From here it takes a millisecond. Only the host's own processes are looked at.
        for outer in self.processes():
            if _inner_pid(outer) == pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(outer, signal.SIGKILL)

    def data_bytes(self) -> Traffic:
        try:
            data, control = self._meter.read("data0"), self._meter.read("ctl0")
        except EngineError as error:
            raise Unfit(f"the bytes of {self.name} cannot be counted: {error}") from error
        return Traffic(
            data.tx_bytes,
            data.tx_packets,
            data.rx_bytes,
            data.rx_packets,
            control.tx_bytes + control.rx_bytes,
            self._repeats.read(),
        )

    def close(self) -> None:
        """After `signal_end`: wait, and remove the host's namespace, scratch space and groups."""
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
        if self._group is not None:
            self._group.remove()
        self._meter.close()  # an open socket would keep the namespace
        self._repeats.close()
        self._wiring.disconnect(self.name)
        sandbox.remove_folders(self.folders)

    def _signal_first(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.record.pid, number)

    def _signal_all(self, number: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _inner_pid(pid: int) -> int | None:
    """The number of process `pid` in the innermost namespace it is in."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
