"""Two gradings at once: what is timed runs alone, and load charges nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grader.turns import Manners, Turns

# Each check notes when it ran, on the clock that all processes share.
_CHECKS = """
import time

import numpy as np
import pytest

from grader.ended import Failed

attempts = dict(confirmed=0)


def case(job):
    return job.run([dict(x=np.ones(3))])


@pytest.mark.points(4)
def test_counted(cluster, measure):
    began = time.monotonic()
    with cluster.job(1, "counted") as job:
        case(job)
        time.sleep(0.5)
    measure.note("began", began)
    measure.note("ended", time.monotonic())


@pytest.mark.points(4)
def test_timed(cluster, measure):
    with cluster.job(1, "timed") as job:
        began = time.monotonic()
        measure.note("seconds", min(case(job).elapsed_s for _ in range(20)))
        measure.note("began", began)
        measure.note("ended", time.monotonic())


@pytest.mark.points(2)
def test_confirmed():
    attempts["confirmed"] += 1
    time.sleep(0.4)
    if attempts["confirmed"] == 1:
        raise Failed("it was too busy here")
"""


@pytest.fixture(scope="module")
def timed_checkout(checkout):
    checkout.lay_out("p29_timed", _CHECKS)
    return checkout


def test_no_timed_check_runs_beside_another_check(timed_checkout, tmp_path: Path) -> None:
    kinds = dict.fromkeys(("Ada", "Bob", "Eve", "Zoe"), "right")
    folder = timed_checkout.hand_in(tmp_path / "class", kinds, "29")
    ended = timed_checkout.run("batch", folder, "--jobs", "2")
    assert ended.code == 0, ended.out
    windows: dict[str, list[tuple[float, float]]] = {"test_counted": [], "test_timed": []}
    for path in (tmp_path / "class-graded").glob("*/*/result.json"):
        for check in json.loads(path.read_text())["checks"]:
            noted = {figure["name"]: figure["value"] for figure in check["figures"]}
            if noted:
                windows[check["name"]].append((noted["began"], noted["ended"]))
    assert [len(found) for found in windows.values()] == [4, 4]
    everything = windows["test_counted"] + windows["test_timed"]
    for timed in windows["test_timed"]:
        assert not [other for other in everything if other != timed and overlap(timed, other)]
    counted = windows["test_counted"]
    assert any(overlap(a, b) for a in counted for b in counted if a != b)


@pytest.mark.parametrize(("manners", "outcome"), [("shared", "passed"), ("free", "failed")])
def test_what_fails_while_others_take_the_processors_is_confirmed_alone(
    timed_checkout, tmp_path: Path, manners: str, outcome: str
) -> None:
    folder = timed_checkout.hand_in(tmp_path, {"Ada": "right"}, "29")
    program = (
        "import sys; from pathlib import Path; from grader.grading_server import GradingServer\n"
        "from grader.package import find; from grader.turns import Manners\n"
        f"with GradingServer(find('29'), Manners('{manners}')) as server:\n"
        "    result = server.grade(Path(sys.argv[1]), ['test_confirmed'])\n"
        "print(result['outcome'])"
    )
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        said = timed_checkout.python(program, folder / "Ada/29")
    finally:
        hog.kill()
        hog.wait()
    assert said == f"{outcome}\n"


def test_whoever_wants_to_be_alone_is_not_overtaken(tmp_path: Path) -> None:
    """The third could share with the first, and has to wait behind the second all the same."""
    order = []

    def hold(alone: bool) -> None:
        with Turns(Manners.SHARED, tmp_path).take(alone=alone):
            order.append(alone)
            time.sleep(0.5)

    threads = [threading.Thread(target=hold, args=(alone,)) for alone in (False, True, False)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert order == [False, True, False]


def overlap(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] < second[1] and second[0] < first[1]
