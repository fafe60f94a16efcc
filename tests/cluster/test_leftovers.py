"""After `kill -9` at any moment, the next command leaves nothing of ours and all of others'."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster import cgroup
from grader.package import find

PROBLEM = find("03")
CGROUPS = Path("/sys/fs/cgroup")


def our_processes(state: Path) -> set[int]:
    """Processes that carry this test's state folder in their environment, or descend from one."""
    found = set()
    parents = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if str(state).encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


@dataclass(frozen=True)
class Made:
    """What a grading had made when it was killed."""

    cgroups: set[Path]
    namespaces: set[str]


def cgroups_of(state: Path) -> set[Path]:
    found: set[Path] = set()
    for ledger in (state / "ledger").glob("*.json"):
        found |= {Path(path) for path in json.loads(ledger.read_text())["cgroups"]}
    return {path for path in found if path.exists()}


def namespaces_in_use(pids: Iterable[int | str]) -> set[str]:
    found = set()
    for pid in pids:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
        except OSError:
            continue
    return found


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def kill_once(state: Path, delay: float, choice: random.Random) -> Made:
    environment = {**os.environ, "DISTLAB_STATE": str(state), "DISTLAB_RUNS": str(state / "runs")}
    environment.pop("DISTLAB_ENCLOSURE", None)
    sample = PROBLEM.folder / "sample_submission.py"
    command = [sys.executable, "-m", "grader.cli", "grade", "03", str(sample)]
    grading = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(delay)
    graders = [pid for pid in our_processes(state) if b"grader.cli" in command_line(pid)]
    mine = namespaces_in_use(["self"])
    made = Made(cgroups_of(state), namespaces_in_use(our_processes(state)) - mine)
    if graders:
        os.kill(choice.choice(sorted(graders)), signal.SIGKILL)
    grading.wait(timeout=10)
    subprocess.run(
        [sys.executable, "-m", "grader.cli", "list"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=30,
    )
    return made


def leaves_nothing(state: Path, moments: int, seed: int) -> None:
    choice = random.Random(seed)
    strangers = subprocess.Popen(["sleep", "600"])
    foreign = CGROUPS / "cpu" / "distlab-of-somebody-else"
    has_cgroups = cgroup.version() == 1 and cgroup.usable()
    if has_cgroups:
        foreign.mkdir()
    most = 0
    try:
        for _ in range(moments):
            made = kill_once(state, choice.uniform(0.3, 8), choice)
            most = max(most, len(made.namespaces))
            deadline = time.monotonic() + 3
            while our_processes(state) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert our_processes(state) == set()
            assert [path for path in made.cgroups if path.exists()] == []
            everyone = [p.name for p in Path("/proc").iterdir() if p.name.isdigit()]
            assert not made.namespaces & namespaces_in_use(everyone)
            assert list((state / "ledger").iterdir()) == []
        assert most >= 2  # at least one kill came while hosts were up
        assert strangers.poll() is None
        assert foreign.exists() or not has_cgroups
    finally:
        strangers.kill()
        strangers.wait()
        if has_cgroups:
            foreign.rmdir()


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    leaves_nothing(tmp_path, moments=4, seed=random.randrange(10**6))


@pytest.mark.soak
def test_nothing_is_left_after_twenty_kills(tmp_path: Path) -> None:
    leaves_nothing(tmp_path, moments=20, seed=random.randrange(10**6))
