"""A batch that is killed, interrupted, or out of disk goes on where it was."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cluster import linux

CLASS = {"bomb": "forking"} | {
    f"learner{i}": kind for i, kind in enumerate(["right", "wrong", "crashing"] * 3)
}


def test_a_batch_killed_again_and_again_grades_each_submission_once(checkout, tmp_path) -> None:
    folder, target = checkout.hand_in(tmp_path / "class", CLASS), tmp_path / "out"
    moments = random.Random(tmp_path.name)
    kept: dict[str, str] = {}
    announced: list[str] = []
    for _ in range(4):
        process = checkout.start("batch", folder, "--to", target)
        time.sleep(moments.uniform(0.5, 4))
        process.kill()
        announced += process.communicate()[1].splitlines()
        now = seeds(target)
        assert kept.items() <= now.items()
        kept = now
        assert not_gone() == []
    ended = checkout.run("batch", folder, "--to", target)
    announced += ended.err.splitlines()
    rows = checkout.grades(target)
    assert ended.code == 0 and kept.items() <= {w: r["seed"] for w, r in rows.items()}.items()
    for who, kind in CLASS.items():
        outcomes = {"right": ["passed"], "wrong": ["failed"]}.get(kind, ["crashed", "timed out"])
        assert rows[who]["outcome"] in outcomes
        assert (target / rows[who]["report"]).exists()
        assert sum(f": {who}, 27:" in line for line in announced) <= 1


def test_an_interrupt_ends_tidily_and_says_how_to_go_on(checkout, tmp_path) -> None:
    folder = checkout.hand_in(tmp_path / "class", {"Ada": "right", "Zoe": "hanging"})
    process = checkout.start("batch", folder)
    wait_for(lambda: seeds(tmp_path / "class-graded").get("Ada"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "distlab: interrupted; 1 of 2 are graded, and the same command goes on from there" in err
    assert "not graded yet" in out and "Traceback" not in err
    assert checkout.grades(tmp_path / "class-graded")["Zoe"]["outcome"] == "not graded yet"
    assert not_gone() == []


def test_a_second_batch_on_the_same_folder_is_told_so(checkout, tmp_path) -> None:
    folder = checkout.hand_in(tmp_path / "class", {"Ada": "right", "Zoe": "hanging"})
    first = checkout.start("batch", folder)
    try:
        wait_for((tmp_path / "class-graded/.journal.sqlite").exists)
        for to in ("class-graded", "elsewhere"):
            second = checkout.run("batch", folder, "--to", tmp_path / to)
            said = f"distlab: another batch is at work on {folder}; wait for its end\n"
            assert (second.code, second.err) == (2, said)
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)


def test_a_grading_process_that_dies_is_replaced_once_and_then_unfit(checkout, tmp_path) -> None:
    kinds = {"Ada": "hanging", "Zoe": "right"}
    folder, target = checkout.hand_in(tmp_path / "class", kinds), tmp_path / "class-graded"
    process = checkout.start("batch", folder)
    first = wait_for(lambda: child_of(process))
    os.kill(first, signal.SIGKILL)
    second = wait_for(lambda: child_of(process, first))
    os.kill(second, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    rows = checkout.grades(target)
    assert process.returncode == 3, err
    assert (rows["Ada"]["outcome"], rows["Ada"]["score"]) == ("unfit", "")
    assert "ended with status -9" in rows["Ada"]["message"]
    assert rows["Zoe"]["outcome"] == "passed"
    again = checkout.run("batch", folder)
    graded = [line for line in again.err.splitlines() if " of 2: " in line]
    assert again.code == 0 and len(graded) == 1 and "Ada, 27: timed out" in graded[0]


def test_a_grading_that_hangs_ends_at_its_deadline(checkout, tmp_path) -> None:
    folder = checkout.hand_in(tmp_path / "class", {"Ada": "hanging"})
    ended = checkout.run("batch", folder, "--deadline", "1")
    row = checkout.grades(tmp_path / "class-graded")["Ada"]
    assert (ended.code, row["outcome"], row["score"]) == (3, "unfit", "")
    said = "it could not be graded, 2 times: there was no verdict within 1 s"
    assert row["message"] == said


def test_a_full_disk_is_said_in_a_sentence_and_loses_nothing(checkout, tmp_path) -> None:
    folder, target = checkout.hand_in(tmp_path / "class", {"Ada": "right"}), tmp_path / "out"
    target.mkdir()
    with small_disk(target):
        assert checkout.run("batch", folder, "--to", target).code == 0
        seed = seeds(target)["Ada"]
        checkout.hand_in(folder, {"Zoe": "right"})
        filler = target / "filler"
        filler.write_bytes(bytes(12 << 20))
        full = checkout.run("batch", folder, "--to", target)
        assert (full.code, full.err.count("\n")) == (3, 1)
        assert "is full; free 32 MiB" in full.err
        filler.unlink()
        assert checkout.run("batch", folder, "--to", target).code == 0
        rows = checkout.grades(target)
        assert (rows["Ada"]["seed"], rows["Zoe"]["outcome"]) == (seed, "passed")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    linux.mount("tmpfs", str(folder), "tmpfs", 0, "size=40m")
    try:
        yield
    finally:
        linux.unmount(str(folder))


def seeds(target: Path) -> dict[str, str]:
    """What the journal holds, by learner."""
    path = target / ".journal.sqlite"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as journal:
        try:
            return dict(journal.execute("SELECT who, seed FROM verdict"))
        except sqlite3.OperationalError:  # killed before it had made the table
            return {}


def not_gone() -> list[str]:
    """Grading processes that outlive their batch."""
    deadline = time.monotonic() + 5
    while (left := grading_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def grading_processes() -> list[str]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if b"grader.grading_server" in command:
            found.append(entry)
    return found


def child_of(process: subprocess.Popen[str], but: int = 0) -> int:
    """A grading process that the batch has started; 0 while there is none."""
    tasks = Path(f"/proc/{process.pid}/task")
    children = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    servers = set(children) & set(grading_processes())
    return next((int(pid) for pid in servers if int(pid) != but), 0)


def wait_for(condition, timeout_s: float = 30):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
