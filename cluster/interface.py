"""What every backend offers: a cluster of hosts, the links between them, and jobs on them.

The grader and the playground are written against these names only.
"""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, Self

from cluster.network.mpi_messages import MessageWatch
from cluster.network.netem import Netem
from cluster.network.paths import Path as LinkPath
from cluster.network.tcp_repeats import NO_REPEATS, TcpRepeats
from cluster.rank_signals import signal_handlers_of


class ClusterError(Exception):
    """The machine could not do what was asked of it. Never the submission's fault."""


class Unfit(ClusterError):
    """The cluster cannot give a fair verdict: a fault did not take, or a part of it died."""


class NoSuchHost(ClusterError):
    """A host was named that the cluster does not have."""


@dataclass(frozen=True)
class Limits:
    """What one host may use.

    cpus: CPU time per wall time (None: no quota). memory_mb, tmp_mb, shm_mb: MiB. pids: processes
    and threads.
    """

    cpus: float | None = None
    memory_mb: int = 3072
    pids: int = 512
    tmp_mb: int = 512
    shm_mb: int = 256


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster that a check asks for.

    files: folders or files shown read-only to every host, target name below `/distlab` -> source.
    without: Python packages that programs on the hosts must not find. network_faults: whether the
    data network must go through an engine that can impair it. block_disk: each host's disk is a
    block device, which can be slowed down, and not memory.
    """

    hosts: int = 4
    slots: int = 1
    limits: Limits = Limits()
    files: Mapping[str, Path] = field(default_factory=dict)
    network_faults: bool = False
    without: tuple[str, ...] = ()
    block_disk: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= 32:
            raise ValueError(f"hosts = {self.hosts}: a cluster has 1 to 32 hosts")
        if not 1 <= self.slots <= 64:
            raise ValueError(f"slots = {self.slots}: a host has 1 to 64 rank slots")


@dataclass(frozen=True)
class GpuInfo:
    """GPUs of a host: product name and how many."""

    kind: str
    count: int


class Mailbox(ABC):
    """The only way data goes to and comes from the ranks of a host: files, capped in size.

    The grader stages files where the host cannot see them, then reveals them at once. Everything
    fetched was written by untrusted code.
    """

    @abstractmethod
    def stage(self, name: str, content: bytes | memoryview) -> None:
        """Write `content` where the host cannot see it yet."""

    @abstractmethod
    def reveal(self, names: Sequence[str]) -> None:
        """Make staged files appear in the host's inbox, each in one step."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Size in bytes of the regular file `name` in the outbox; None if there is none."""

    @abstractmethod
    def fetch(self, name: str, limit: int) -> bytes:
        """Contents of a file of the outbox.

        Raises OversizedFile above `limit` bytes, FileNotFoundError when absent or not regular.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Names in the outbox, at most 10,000."""

    @abstractmethod
    def remove(self, prefix: str) -> None:
        """Remove every file whose name starts with `prefix` from inbox, outbox and staging."""


class OversizedFile(Exception):
    """The host wrote more than a result may hold."""


class Host(ABC):
    """One machine: an emulated sandbox, a set of plain processes, or a real server."""

    name: str
    index: int
    slots: int
    data_address: str
    data_interface: str = "data0"
    python: str = sys.executable
    mailbox: Mailbox
    gpus: GpuInfo | None = None

    @abstractmethod
    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on the host; the returned process ends when it does."""

    @abstractmethod
    def path(self, name: str) -> str:
        """Where programs on the host find `name`: "in", "out", or a name of ClusterSpec.files."""

    def resident_command(self, command: Sequence[str]) -> list[str]:
        """The command line that makes `command` a process of this host.

        For a launcher that starts programs by itself; where its agent does that, `command` as is.
        """
        return list(command)

    def kill_process(self, pid: int) -> None:
        """End a process of the host with SIGKILL. pid: as processes of the host see it."""
        # On the host, and with no more rights than its processes have.
        self.start(["/bin/sh", "-c", f"kill -KILL {pid}"]).wait()

    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def kill(self) -> None:
        """Crash the host: every process of it ends at once, and it stays down."""

    @abstractmethod
    def pause(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...

    @abstractmethod
    def set_cpus(self, cpus: float | None) -> None:
        """Limit the host to `cpus` processors' worth of time; None lifts the limit."""

    @abstractmethod
    def fill_disk(self) -> None:
        """Leave the host no free block on the disk it writes to. Raises Unfit."""

    @abstractmethod
    def free_disk(self) -> None:
        """Undo `fill_disk`."""

    def slow_disk(self, bytes_per_s: float | None) -> str:
        """Let the host's disk move so many bytes a second, None for as many as it can; return the
        proof in words. Raises Unfit."""
        raise Unfit(
            f"the disk of {self.name} cannot be slowed down; hosts of `netns` can, for root"
        )

    @abstractmethod
    def processes(self) -> list[int]:
        """Process ids of everything that runs on the host, as that machine's kernel counts them."""

    def signal_ranks(self, number: int) -> None:
        """Send a signal to those processes of the host that have a handler for it."""
        signal_handlers_of(self.processes(), number)

    def clock_offset(self) -> float:
        """Seconds to add to the host's monotonic clock to get this machine's."""
        return 0.0

    @abstractmethod
    def data_bytes(self) -> Traffic:
        """Counters of the host's interfaces, read outside the host."""


@dataclass(frozen=True)
class Traffic:
    """Bytes and packets that left and reached a host, Ethernet headers included.

    control_bytes: both directions of the launcher's network, so that nobody goes round the
    counted one. repeats: those among the packets that TCP sent again.
    """

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int
    control_bytes: int
    repeats: TcpRepeats = NO_REPEATS

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes - before.sent_bytes,
            self.sent_packets - before.sent_packets,
            self.received_bytes - before.received_bytes,
            self.received_packets - before.received_packets,
            self.control_bytes - before.control_bytes,
            self.repeats - before.repeats,
        )


@dataclass(frozen=True)
class LauncherAccess:
    """How a launcher on the head reaches the hosts of a cluster.

    agent: program started as `agent HOST COMMAND`, None where hosts are this machine itself.
    control_network, data_network: CIDR of the launcher's and of the job's network, None for any.
    head_address: address at which the hosts reach the head.
    """

    agent: str | None = None
    control_network: str | None = None
    data_network: str | None = None
    head_address: str = "127.0.0.1"


class ImpairedNetwork(Protocol):
    """The data network of one cluster, as far as faults go."""

    def impose(self, rules: Mapping[LinkPath, Netem], *, idle: bool = True) -> str:
        """Put the complete set of rules into force; return the proof in words. Raises Unfit.

        idle: nothing else is sent meanwhile, so that the proof may look at all packets.
        """


class Cluster(ABC):
    """A set of hosts and the links between them. A context manager; leaving it removes all."""

    backend: str
    hosts: Sequence[Host]
    launcher_access: LauncherAccess
    network: ImpairedNetwork | None = None

    def host(self, name: str) -> Host:
        """The host called `name`. Raises NoSuchHost naming the valid ones."""
        for host in self.hosts:
            if host.name == name:
                return host
        valid = ", ".join(h.name for h in self.hosts)
        raise NoSuchHost(f"there is no host {name!r}; this cluster has {valid}")

    def trouble(self) -> str | None:
        """What the cluster itself has come to grief of, as a sentence; None as long as all is well.

        Hosts that a fault has killed do not count.
        """
        return None

    def watch_messages(self) -> MessageWatch | None:
        """Begin to watch the hosts' links for messages of MPI collectives; None where the links
        cannot be watched from outside of the hosts."""
        return None

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Backend(ABC):
    """Makes clusters, and keeps what they share. A context manager.

    network_engine: what serves network faults: "kernel", "uml" or "none".
    """

    name: str
    network_engine: str = "none"

    @abstractmethod
    def cluster(self, spec: ClusterSpec) -> Cluster:
        """Bring up fresh hosts. Raises ClusterError."""

    @abstractmethod
    def prepare_network_faults(self) -> None:
        """Begin to start what network faults need, without waiting for it."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
