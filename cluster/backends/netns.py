"""Emulated hosts on one Linux machine: each a bubblewrap sandbox with a network of its own.

A `NetnsBackend` owns what outlives a check: the shared root image, the launcher's bridge and the
network-fault engine. A `NetnsCluster` owns hosts and their links, and is thrown away after use.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import cgroup, enclosure, sandbox
from cluster.backends.netns_host import AGENT, NetnsHost
from cluster.backends.netns_network import EngineNetwork
from cluster.backends.netns_wiring import (
    CONTROL_SUBNET,
    DATA_SUBNET,
    HEAD_CONTROL_ADDRESS,
    Wiring,
    data_address,
)
from cluster.enter import HostRecord
from cluster.interface import (
    Backend,
    Cluster,
    ClusterError,
    ClusterSpec,
    LauncherAccess,
    Unfit,
)
from cluster.network.errors import EngineError
from cluster.network.mpi_messages import MessageWatch
from cluster.seccomp import build_filter

if TYPE_CHECKING:
    from cluster.network.engine import Engine

MOST_HOSTS = 12
LAUNCHER_AGENT = sandbox.RUN / "launcher-agent"


def host_environment() -> dict[str, str]:
    """Environment of every program on a host."""
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@dataclass(frozen=True)
class _HostParts:
    """What there is of a host before its sandbox runs."""

    index: int
    name: str
    owner: int | None
    folders: sandbox.HostFolders
    group: cgroup.HostCgroup | None


class NetnsCluster(Cluster):
    """Fresh emulated hosts on the backend's networks."""

    backend = "netns"
    network: EngineNetwork | None = None
    launcher_access = LauncherAccess(
        str(LAUNCHER_AGENT),
        f"{CONTROL_SUBNET}.0/24",
        f"{DATA_SUBNET}.0/24",
        HEAD_CONTROL_ADDRESS,
    )

    def __init__(self, backend: NetnsBackend, spec: ClusterSpec) -> None:
        self.site, self.spec = backend, spec
        self.hosts: list[NetnsHost] = []
        self._ports: list[str] = []
        """Names of the data links' other ends."""
        addresses = {f"node{i + 1}": data_address(i) for i in range(spec.hosts)}
        # torch looks up the name of whoever it talks to and warns when there is none.
        addresses |= {f"node{i + 1}-ctl": f"{CONTROL_SUBNET}.{i + 1}" for i in range(spec.hosts)}
        addresses["head"] = HEAD_CONTROL_ADDRESS
        sandbox.write_hosts_file(addresses)
        try:
            self._make_hosts()
            if (engine := self._engine()) is not None:
                self.network = EngineNetwork(engine, self.hosts)
        except BaseException:
            self.close()
            raise

    def trouble(self) -> str | None:
        engine = self._engine()
        if engine is not None and not engine.alive():
            return "the network-fault engine died while the job ran; run again"
        return None

    def watch_messages(self) -> MessageWatch | None:
        engine = self._engine()
        with contextlib.suppress(OSError, EngineError):
            return MessageWatch(self._ports, engine.netns if engine else None)
        return None

    def close(self) -> None:
        if self.network is not None:
            self.network.close()
            self.network = None
        if (engine := self._engine()) is not None:
            with contextlib.suppress(Exception):
                engine.apply({})
        for host in self.hosts:
            self._unplug(host.index)
            host.signal_end()  # all at once: the kernel takes a while to take a sandbox down
        for host in self.hosts:
            host.close()
        self.hosts = []

    def _make_hosts(self) -> None:
        """Each step for all hosts before the next: their sandboxes are set up side by side."""
        with contextlib.ExitStack() as undo:
            parts = [self._make_parts(index, undo) for index in range(self.spec.hosts)]
            for part in parts:
                self.site.wiring.finish(part.name, count_packets=self.spec.network_faults)
            starting = [self._start_host(part, undo) for part in parts]
            self.hosts = [self._finish_host(*pair) for pair in zip(parts, starting, strict=True)]
            undo.pop_all()

    def _make_parts(self, index: int, undo: contextlib.ExitStack) -> _HostParts:
        """Folders, links and control groups; `undo` takes them back if something fails later."""
        name, spec, site = f"node{index + 1}", self.spec, self.site
        owner = sandbox.host_uid(index) if site.real_root else None
        folders = sandbox.HostFolders(sandbox.RUN / "hosts" / name)
        undo.callback(sandbox.remove_folders, folders)
        if spec.block_disk and not site.cgroups:
            raise Unfit(
                "a slow disk needs control groups, which this user may not make; run as root"
            )
        sandbox.make_folders(folders, spec.limits, owner, on_device=spec.block_disk)
        sandbox.show(folders, spec.files)
        undo.callback(site.wiring.disconnect, name)
        engine = self._engine()
        port = site.wiring.connect(name, index, spec.hosts, engine.netns if engine else None)
        self._ports.append(port)
        if engine is not None:
            undo.callback(self._unplug, index)
            engine.plug(index, port)
        group = None
        if site.cgroups:
            record_cgroup = enclosure.ledger().record_cgroup
            group = cgroup.create(f"{site.tag}-{name}", record_cgroup, disk=spec.block_disk)
            undo.callback(group.remove)
            group.set_limits(spec.limits)
        return _HostParts(index, name, owner, folders, group)

    def _start_host(self, part: _HostParts, undo: contextlib.ExitStack) -> sandbox.StartingHost:
        def command(info: int) -> list[str]:
            environment = host_environment()
            without = self.spec.without
            return sandbox.bubblewrap_command(part.name, part.folders, environment, info, without)

        starting = sandbox.start_host(command, Path(f"/run/netns/{part.name}"), part.owner)
        undo.callback(starting.abandon)
        return starting

    def _finish_host(self, part: _HostParts, starting: sandbox.StartingHost) -> NetnsHost:
        # Whoever enters the host joins its control groups; its first process only sleeps.
        groups = tuple(str(f) for f in set(part.group.folders.values())) if part.group else ()
        pid, seccomp = starting.pid(), self.site.seccomp.hex()
        record = HostRecord(part.name, pid, groups, host_environment(), seccomp)
        record.save()
        slots, wiring = self.spec.slots, self.site.wiring
        return NetnsHost(
            part.index, slots, part.folders, starting.process, record, part.group, wiring
        )

    def _unplug(self, index: int) -> None:
        if (engine := self._engine()) is not None:
            with contextlib.suppress(Exception):
                engine.unplug(index)

    def _engine(self) -> Engine | None:
        """The switch that the hosts are plugged into; None where a bridge without faults does."""
        return self.site.engine if self.spec.network_faults else None


class NetnsBackend(Backend):
    """Everything emulated clusters share in one enclosure. Raises ClusterError outside of one."""

    name = "netns"

    def __init__(self) -> None:
        if not enclosure.inside():
            raise ClusterError(
                "emulated hosts are built inside an enclosure; start the program with "
                "`python -m cluster.enclosure -- ...`"
            )
        self.real_root = Path("/proc/self/uid_map").read_text().split()[2] != "1"
        self.cgroups = self.real_root and cgroup.usable()
        self.seccomp = build_filter()
        self.tag = f"{enclosure.ledger().name}-{time.monotonic_ns():x}"
        self.engine: Engine | None = None
        self._engine_ready = False
        sandbox.build_root_image()
        self._write_agent()
        self.wiring = Wiring()

    def cluster(self, spec: ClusterSpec) -> NetnsCluster:
        if spec.hosts > MOST_HOSTS:
            raise ClusterError(f"{spec.hosts} hosts asked for; this backend emulates {MOST_HOSTS}")
        if spec.network_faults:
            self._wait_for_engine()
        return NetnsCluster(self, spec)

    def prepare_network_faults(self) -> None:
        if self.engine is not None:
            return
        from cluster.network.engine import choose_engine

        try:
            engine = choose_engine()
            engine.start(MOST_HOSTS)
        except EngineError as error:
            raise Unfit(f"this machine makes no network faults: {error}") from error
        self.engine, self.network_engine = engine, engine.name

    def close(self) -> None:
        if self.engine is not None:
            self.engine.stop()
            self.engine = None
        self.wiring.close()

    def _wait_for_engine(self) -> None:
        if self.engine is not None and self._engine_ready and not self.engine.alive():
            self.engine.stop()
            self.engine, self._engine_ready = None, False
        self.prepare_network_faults()
        assert self.engine is not None
        if not self._engine_ready:
            try:
                self.engine.wait_ready(timeout_s=30)
            except EngineError as error:
                raise Unfit(f"this machine makes no network faults: {error}") from error
            self._engine_ready = True

    def _write_agent(self) -> None:
        program = Path(__file__).resolve().parent.parent / "enter.py"
        python = shlex.quote(sys.executable)
        AGENT.write_text(f'#!/bin/sh\nexec {python} -I -S {shlex.quote(str(program))} "$@"\n')
        AGENT.chmod(0o755)
        LAUNCHER_AGENT.write_text(
            f'#!/bin/sh\nexec {python} -I -S {shlex.quote(str(program))} --shell "$@"\n'
        )
        LAUNCHER_AGENT.chmod(0o755)
