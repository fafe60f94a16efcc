"""Emulated hosts on one Linux machine: each a bubblewrap sandbox with a network of its own.

A `NetnsBackend` owns what outlives a check: the shared root image, the launcher's bridge and the
network-fault engine. A `NetnsCluster` owns hosts and their links, and is thrown away after use.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
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
    data_port,
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
        addresses = {f"node{i + 1}": data_address(i) for i in range(spec.hosts)}
        # torch looks up the name of whoever it talks to and warns when there is none.
        addresses |= {f"node{i + 1}-ctl": f"{CONTROL_SUBNET}.{i + 1}" for i in range(spec.hosts)}
        addresses["head"] = HEAD_CONTROL_ADDRESS
        sandbox.write_hosts_file(addresses)
        try:
            for index in range(spec.hosts):
                self.hosts.append(self._make_host(index))
            if spec.network_faults and backend.engine is not None:
                self.network = EngineNetwork(backend.engine, self.hosts)
        except BaseException:
            self.close()
            raise

    def trouble(self) -> str | None:
        engine = self.site.engine
        if self.spec.network_faults and engine is not None and not engine.alive():
            return "the network-fault engine died while the job ran; run again"
        return None

    def watch_messages(self) -> MessageWatch | None:
        with contextlib.suppress(OSError):
            return MessageWatch([data_port(host.index) for host in self.hosts])
        return None

    def close(self) -> None:
        if self.network is not None:
            self.network.close()
            self.network = None
        if self.spec.network_faults and self.site.engine is not None:
            with contextlib.suppress(Exception):
                self.site.engine.apply({})
        for host in self.hosts:
            if self.spec.network_faults and self.site.engine is not None:
                with contextlib.suppress(Exception):
                    self.site.engine.unplug(host.index)
            host.close()
        self.hosts = []

    def _make_host(self, index: int) -> NetnsHost:
        with contextlib.ExitStack() as undo:
            host = self._make_parts(index, undo)
            undo.pop_all()
            return host

    def _make_parts(self, index: int, undo: contextlib.ExitStack) -> NetnsHost:
        """Make a host; `undo` takes back what was made before something failed."""
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
        port = site.wiring.connect(name, index, spec.hosts)
        if spec.network_faults and site.engine is not None:
            site.engine.plug(index, port)
        else:
            site.wiring.join_plain_data(port)
        site.wiring.finish(name, count_packets=spec.network_faults)
        group = None
        if site.cgroups:
            record_cgroup = enclosure.ledger().record_cgroup
            group = cgroup.create(f"{site.tag}-{name}", record_cgroup, disk=spec.block_disk)
            undo.callback(group.remove)
            group.set_limits(spec.limits)
        environment = host_environment()
        info_read, info_write = os.pipe()
        command = sandbox.bubblewrap_command(name, folders, environment, info_write, spec.without)
        process, pid = sandbox.start_host(
            command, info_read, info_write, Path(f"/run/netns/{name}"), owner
        )
        # Whoever enters the host joins its control groups; its first process only sleeps.
        record = HostRecord(
            name,
            pid,
            tuple(str(f) for f in set(group.folders.values())) if group else (),
            environment,
            site.seccomp.hex(),
        )
        record.save()
        return NetnsHost(index, spec.slots, folders, process, record, group, site.wiring)


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
