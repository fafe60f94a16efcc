"""Whatever a user can get wrong: one sentence, no traceback, the documented exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import linux
from grader.package import find

SAMPLE = find("03").folder / "sample_submission.py"


def distlab(
    *arguments: str, cwd: Path, timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "DISTLAB_STATE": str(cwd / "state"), **environment}
    settings.pop("DISTLAB_ENCLOSURE", None)
    return subprocess.run(
        [sys.executable, "-m", "grader.cli", *arguments],
        cwd=cwd,
        env=settings,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def expect(done: subprocess.CompletedProcess[str], code: int, says: str) -> None:
    assert done.returncode == code, done.stderr
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) <= 3


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "result.json").write_text('{"schema_version": 1')
    (tmp_path / "syntax.py").write_text("def allreduce(comm:\n    pass\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "notes.txt").write_text("no code")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("grade", "99", "x.py"), "there is no problem '99'"),
        (("grade", "03", "missing.py"), "there is no file missing.py"),
        (("grade", "03", "notes.txt"), "not a Python file"),
        (("grade", "03", "empty"), "has no solution.py"),
        (("grade", "03", "syntax.py"), "syntax.py, line 1: syntax error"),
        (("grade", "03", "binary.py"), "not UTF-8"),
        (("grade", "03", str(SAMPLE), "--only", "test_x"), "has no check 'test_x'"),
        (("grade", "03", str(SAMPLE), "--json", "no/where.json"), "does not exist"),
        (("grade", "03", str(SAMPLE), "--seed", "-1"), "a seed is a whole number"),
        (("report", "nothing"), "there is no such run"),
        (("report", "damaged"), "cannot be shown"),
        (("cluster", "status"), "no cluster is up"),
        (("cluster", "up", "--files", "missing"), "is not a folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    here: Path, arguments: tuple[str, ...], says: str
) -> None:
    expect(distlab(*arguments, cwd=here), 2, says)


def test_start_does_not_overwrite_work(here: Path) -> None:
    assert distlab("start", "03", cwd=here).returncode == 0
    solution = here / "p03_allreduce_mpi" / "solution.py"
    solution.write_text("mine")
    expect(distlab("start", "03", cwd=here), 2, "exists")
    assert solution.read_text() == "mine"


def test_hints_come_one_by_one_with_their_cost_and_end(here: Path) -> None:
    shown = [distlab("hint", "03", cwd=here).stdout for _ in range(3)]
    assert [f"Hint {n} of 3" in text for n, text in enumerate(shown, 1)] == [True] * 3
    done = distlab("hint", "03", cwd=here)
    assert "no further hint" in done.stderr


def test_no_engine_makes_the_run_unfit_and_costs_nothing(here: Path) -> None:
    done = distlab(
        "grade",
        "03",
        str(SAMPLE),
        "--only",
        "test_small_messages_take_log_n_rounds",
        cwd=here,
        DISTLAB_NETWORK_ENGINE="none",
    )
    assert done.returncode == 3, done.stderr
    assert "Unfit" in done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_a_full_disk_is_said_before_anything_runs(here: Path) -> None:
    small = here / "small"
    small.mkdir()
    linux.mount("tmpfs", str(small), "tmpfs", 0, "size=1m")
    try:
        done = distlab("grade", "03", str(SAMPLE), cwd=here, DISTLAB_RUNS=str(small))
    finally:
        linux.unmount(str(small))
    expect(done, 3, "is full; free 32 MiB")


def test_a_run_folder_that_cannot_be_written_is_said(here: Path) -> None:
    expect(
        distlab("grade", "03", str(SAMPLE), cwd=here, DISTLAB_RUNS="/proc/nowhere"),
        3,
        "cannot be written",
    )


def test_without_rights_the_one_command_is_named(here: Path) -> None:
    code = (
        "import sys\n"
        "from cluster import enclosure, linux\n"
        "def refuse(flags): raise PermissionError(1, 'no')\n"
        "linux.unshare = refuse\n"
        "sys.argv = ['distlab', 'grade', '03', sys.argv[1]]\n"
        "from grader.cli import main\n"
        "main()\n"
    )
    settings = {**os.environ, "DISTLAB_STATE": str(here / "state")}
    settings.pop("DISTLAB_ENCLOSURE", None)
    done = subprocess.run(
        [sys.executable, "-c", code, str(SAMPLE)],
        cwd=here,
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expect(done, 3, "start it with `--privileged`")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_grading_keeps_what_was_judged(here: Path, number: signal.Signals) -> None:
    settings = {**os.environ, "DISTLAB_STATE": str(here / "state")}
    settings.pop("DISTLAB_ENCLOSURE", None)
    grading = subprocess.Popen(
        [sys.executable, "-m", "grader.cli", "grade", "03", str(SAMPLE)],
        cwd=here,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(6)
    if number == signal.SIGINT:
        os.killpg(grading.pid, number)  # as a terminal does
    else:
        os.kill(grading.pid, number)
    _, errors = grading.communicate(timeout=30)
    assert grading.returncode == 130, errors
    assert "interrupted; what was judged so far is in" in errors.replace("\n", " ")
    assert "Traceback" not in errors
    assert (here / "runs" / "latest" / "result.json").exists()
    assert list((here / "state" / "ledger").iterdir()) == []
