"""Plain processes on this machine as hosts: for first tries, on any Unix, without rights.

Every host is a folder and the process groups started for it. There is one network, the loopback,
and nobody can impair or count it; what cannot be done is refused and never pretended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from cluster import enclosure
from cluster.backends import join_group
from cluster.interface import (
    Backend,
    Cluster,
    ClusterError,
    ClusterSpec,
    Host,
    LauncherAccess,
    Traffic,
    Unfit,
)
from cluster.ledger import Ledger
from cluster.mailbox import FolderMailbox

_ELSEWHERE = "use the default backend on Linux, `--backend netns`"
_END_TIMEOUT_S = 3.0
_JOIN_GROUP = Path(join_group.__file__)


class LocalHost(Host):
    """A folder, and the process groups that work in it. Made by LocalCluster."""

    data_address = "127.0.0.1"
    data_interface = "lo0" if sys.platform == "darwin" else "lo"

    def __init__(self, index: int, slots: int, folder: Path) -> None:
        self.name, self.index, self.slots = f"node{index + 1}", index, slots
        self._folder, self._down = folder, False
        self._started: list[subprocess.Popen[bytes]] = []
        self._root, self._groups = folder / "distlab", folder / join_group.GROUPS
        for part in (self._root, self._groups, folder / "tmp", folder / "staging"):
            part.mkdir(parents=True)
        inbox, outbox = self._root / "in", self._root / "out"
        inbox.mkdir()
        outbox.mkdir()
        self.mailbox = FolderMailbox(folder / "staging", inbox, outbox)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on the host. Raises ClusterError when the host is down."""
        if self._down:
            raise ClusterError(f"{self.name} is down")
        process = subprocess.Popen(
            self.resident_command(command),
            env={**self._environment(), **(env or {})},
            cwd=self._folder / "tmp",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        self._started = [*(p for p in self._started if p.poll() is None), process]
        return process

    def resident_command(self, command: Sequence[str]) -> list[str]:
        return [sys.executable, "-I", "-S", str(_JOIN_GROUP), str(self._groups), *command]

    def path(self, name: str) -> str:
        return str(self._root / name)

    def alive(self) -> bool:
        return not self._down

    def kill(self) -> None:
        self._down = True
        for process in self._started:  # some may not have made their group yet
            process.kill()
        deadline = time.monotonic() + _END_TIMEOUT_S
        while self.processes() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            time.sleep(0.005)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def set_cpus(self, cpus: float | None) -> None:
        if cpus is not None:
            raise Unfit(f"the local backend has no CPU quotas; {_ELSEWHERE}")

    def fill_disk(self) -> None:
        raise Unfit(f"hosts of the local backend share this machine's disk; {_ELSEWHERE}")

    def free_disk(self) -> None:
        """Nothing to undo."""

    def processes(self) -> list[int]:
        groups = set(join_group.live_groups(self._groups))
        return [pid for pid, group in join_group.processes() if group in groups]

    def data_bytes(self) -> Traffic:
        raise Unfit(f"bytes are not counted on the local backend; {_ELSEWHERE}")

    def _signal(self, number: int) -> None:
        for group in join_group.live_groups(self._groups):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def _environment(self) -> dict[str, str]:
        kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._folder / "tmp"),
            "TMPDIR": str(self._folder / "tmp"),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


class LocalCluster(Cluster):
    """Hosts below one temporary folder."""

    backend = "local"
    launcher_access = LauncherAccess()

    def __init__(self, spec: ClusterSpec, folder: Path) -> None:
        self._folder = folder
        self.hosts: list[LocalHost] = []
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_JOIN_GROUP), "--watch", str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            for index in range(spec.hosts):
                host = LocalHost(index, spec.slots, folder / f"node{index + 1}")
                self.hosts.append(host)
                for name, source in spec.files.items():
                    _show(source, Path(host.path(name)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
        self.hosts = []
        shutil.rmtree(self._folder, ignore_errors=True)
        self._watcher.kill()
        self._watcher.communicate()


def _show(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


class LocalBackend(Backend):
    """Clusters of plain processes. Limits of a ClusterSpec do not hold here."""

    name = "local"

    def __init__(self) -> None:
        self._owns_ledger = not enclosure.inside()
        self._ledger = Ledger.open() if self._owns_ledger else enclosure.ledger()

    def cluster(self, spec: ClusterSpec) -> LocalCluster:
        """Make hosts. Raises Unfit when the spec wants an impaired network."""
        if spec.network_faults:
            self.prepare_network_faults()
        folder = Path(tempfile.gettempdir()) / f"distlab-{os.getpid()}-{time.monotonic_ns():x}"
        self._ledger.record_folder(str(folder))
        folder.mkdir(mode=0o700)
        return LocalCluster(spec, folder)

    def prepare_network_faults(self) -> None:
        """Raises Unfit: there is no network of its own to impair."""
        raise Unfit(f"the local backend has no network faults; {_ELSEWHERE}")

    def close(self) -> None:
        if self._owns_ledger:
            self._ledger.close()
