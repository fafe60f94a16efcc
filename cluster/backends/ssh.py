"""Real machines from an inventory as hosts, reached with the user's own OpenSSH client.

Nothing is installed on them and nothing of theirs is changed: a host is a scratch folder and the
processes started for it. Ranks run as the user that ssh logs in, so what one does to files of that
user is not prevented: use it for people's own machines, and `netns` to judge strangers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from cluster import rank_signals
from cluster.backends.ssh_clock import measure_offset
from cluster.backends.ssh_connection import SshConnection
from cluster.backends.ssh_network import SshNetwork
from cluster.interface import (
    Backend,
    Cluster,
    ClusterError,
    ClusterSpec,
    Host,
    LauncherAccess,
    Mailbox,
    Traffic,
    Unfit,
)
from cluster.inventory import Inventory
from cluster.network.tcp_repeats import repeats

_SIGNAL_TIMEOUT_S = 5.0
_MOST_FILE_BYTES = 64 * 2**20


class SshMailbox(Mailbox):
    """A mailbox whose folders are on the remote machine."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection

    def stage(self, name: str, content: bytes | memoryview) -> None:
        self._connection.request("stage", content, name=_plain(name))

    def reveal(self, names: Sequence[str]) -> None:
        self._connection.request("reveal", names=[_plain(name) for name in names])

    def size(self, name: str) -> int | None:
        size = self._connection.request("size", name=_plain(name))[0]["size"]
        return None if size is None else int(size)

    def fetch(self, name: str, limit: int) -> bytes:
        return self._connection.request("fetch", name=_plain(name), limit=limit)[1]

    def names(self) -> list[str]:
        return [str(name) for name in self._connection.request("names")[0]["names"]]

    def remove(self, prefix: str) -> None:
        self._connection.request("remove", prefix=prefix)


def _plain(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file in a mailbox")
    return name


class SshHost(Host):
    """A machine of the inventory. `processes` are pids of that machine."""

    def __init__(self, index: int, slots: int, connection: SshConnection) -> None:
        machine = connection.machine
        self.name, self.index, self.slots = machine.name, index, slots
        self.data_address, self.data_interface = machine.data_address, machine.data_interface
        self.gpus, self.python = machine.gpus, connection.python
        self.connection, self.mailbox = connection, SshMailbox(connection)
        self._control_interface = machine.control_interface
        self._down = False
        self._clock_offset: float | None = None

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program; it ends when the returned process does.

        As with ssh by hand, the returned process lasts as long as anything holds the program's
        output open. Raises ClusterError when the host is down.
        """
        if not self.alive():
            raise ClusterError(f"{self.name} is down")
        return self.connection.start(command, dict(env or {}), stdin, stdout, stderr)

    def path(self, name: str) -> str:
        return f"{self.connection.root}/{name}"

    def alive(self) -> bool:
        return not self._down and not self.connection.lost()

    def kill(self) -> None:
        """End every process that was started here. The machine itself goes on."""
        self._down = True
        if not self.connection.lost():
            self.connection.request("end")

    def pause(self) -> None:
        self.connection.request("signal", number=int(signal.SIGSTOP))

    def resume(self) -> None:
        self.connection.request("signal", number=int(signal.SIGCONT))

    def set_cpus(self, cpus: float | None) -> None:
        self.connection.request("set_cpus", cpus=cpus)

    def fill_disk(self) -> None:
        raise Unfit(f"{self.name} is a real machine: its disk is not filled")

    def free_disk(self) -> None:
        """Nothing to undo."""

    def processes(self) -> list[int]:
        return [int(pid) for pid in self.connection.request("processes")[0]["pids"]]

    def signal_ranks(self, number: int) -> None:
        # Which processes catch the signal can only be seen there, just before it is sent.
        code = f"{Path(rank_signals.__file__).read_text()}\nimport json, sys\n"
        code += "signal_handlers_of(json.loads(sys.argv[1]), int(sys.argv[2]))\n"
        command = [self.python, "-I", "-S", "-c", code]
        command += [json.dumps(self.processes()), str(int(number))]
        quiet = subprocess.DEVNULL
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.start(command, stdout=quiet, stderr=quiet).wait(_SIGNAL_TIMEOUT_S)

    def clock_offset(self) -> float:
        """Measured once for each cluster, to half a round trip of the connection."""
        if self._clock_offset is None:
            self._clock_offset = measure_offset(self)
        return self._clock_offset

    def data_bytes(self) -> Traffic:
        """Counters of the data interface, which count the machine's other traffic as well."""
        data, _ = self.connection.request("counters", interface=self.data_interface)
        control = 0
        if self._control_interface not in (None, self.data_interface):
            other, _ = self.connection.request("counters", interface=self._control_interface)
            control = int(other["tx_bytes"]) + int(other["rx_bytes"])
        return Traffic(
            int(data["tx_bytes"]),
            int(data["tx_packets"]),
            int(data["rx_bytes"]),
            int(data["rx_packets"]),
            control,
            repeats(str(data["snmp"]), str(data["netstat"]), int(data["mtu"])),
        )


class SshCluster(Cluster):
    """The first machines of an inventory, connected."""

    backend = "ssh"
    network: SshNetwork | None = None

    def __init__(self, inventory: Inventory, spec: ClusterSpec) -> None:
        # Sockets live here, and their paths may have 100 characters at most.
        self._folder = Path(tempfile.mkdtemp(prefix="dl-", dir="/tmp"))
        self.hosts: list[SshHost] = []
        machines = inventory.machines[: spec.hosts]
        try:
            with ThreadPoolExecutor(len(machines)) as pool:
                connecting = [
                    pool.submit(SshConnection, machine, inventory.known_hosts, self._folder)
                    for machine in machines
                ]
            failures = [job.exception() for job in connecting if job.exception()]
            self.hosts = [
                SshHost(index, spec.slots, job.result())
                for index, job in enumerate(connecting)
                if job.exception() is None
            ]
            if failures:
                raise ClusterError("; ".join(str(failure) for failure in failures))
            for host in self.hosts:
                _show(host.connection, spec.files)
                if spec.limits.cpus is not None:
                    host.set_cpus(spec.limits.cpus)
        except BaseException:
            self.close()
            raise
        self.network = SshNetwork([host.connection for host in self.hosts])
        self.launcher_access = LauncherAccess(
            str(self._write_agent()),
            inventory.control_network,
            inventory.data_network,
            inventory.head_address,
        )

    def launcher_agent(self) -> str:
        """Path of the program that runs `COMMAND ...` on HOST: mpirun's `plm_ssh_agent`."""
        return str(self._folder / "agent")

    def close(self) -> None:
        if self.network is not None:
            with contextlib.suppress(ClusterError):
                self.network.impose({})
        with ThreadPoolExecutor(max(1, len(self.hosts))) as pool:
            list(pool.map(lambda host: host.connection.close(), self.hosts))
        self.hosts = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_agent(self) -> Path:
        lines = ["#!/bin/sh", "host=$1", "shift"]
        # Hexadecimal survives every login shell; the words are the launcher's shell code already.
        lines.append("hex=$(printf %s \"$*\" | od -An -v -tx1 | tr -d ' \\n')")
        lines.append('case "$host" in')
        lines += [f"{host.name}) {host.connection.launcher_line()} ;;" for host in self.hosts]
        lines += ["esac", 'echo "distlab: there is no host $host" >&2', "exit 255"]
        path = self._folder / "agent"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o700)
        return path


def _show(connection: SshConnection, files: Mapping[str, Path]) -> None:
    """Copy the files that a host may read. Links and special files are left out."""
    total = 0
    for name, source in files.items():
        if source.is_dir():
            connection.request("folder", path=name)
        for path in _regular_files(source):
            total += path.stat().st_size
            if total > _MOST_FILE_BYTES:
                raise ClusterError(f"{source} holds more than 64 MiB; hand in less")
            target = name if path == source else f"{name}/{path.relative_to(source).as_posix()}"
            connection.request("file", path.read_bytes(), path=target)


def _regular_files(source: Path) -> Iterator[Path]:
    for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
            yield path


class SshBackend(Backend):
    """Makes clusters of the machines of one inventory."""

    name = "ssh"
    network_engine = "kernel"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def cluster(self, spec: ClusterSpec) -> SshCluster:
        """Connect to the first `spec.hosts` machines. Of its limits only `cpus` holds here.

        Raises ClusterError when machines or slots are too few, or one cannot be reached.
        """
        machines = self._inventory.machines
        if spec.hosts > len(machines):
            raise ClusterError(f"{spec.hosts} hosts asked for; the inventory has {len(machines)}")
        for machine in machines[: spec.hosts]:
            if spec.slots > machine.slots:
                raise ClusterError(
                    f"{spec.slots} slots a host asked for; {machine.name} has {machine.slots}"
                )
        return SshCluster(self._inventory, spec)

    def prepare_network_faults(self) -> None:
        """Nothing to start: the machines' own kernels impair their interfaces."""

    def close(self) -> None:
        """Nothing is kept between clusters."""
