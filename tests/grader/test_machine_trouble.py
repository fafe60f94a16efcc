"""Trouble of the machine in mid-run is never charged to the learner."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

_CHECKS = """
import os
import signal
import threading

import numpy as np
import pytest

from cluster import linux


def inputs():
    return [dict(x=np.arange(4.0) + rank) for rank in range(2)]


def kill_engine(cluster):
    os.kill(cluster.cluster.site.engine.process_id, signal.SIGKILL)


times = dict(dies=0)


@pytest.mark.fault("delay 50ms on all")
def test_the_engine_dies_once(cluster):
    with cluster.job(2, "the engine dies") as job:
        job.run(inputs(), dict(mode="many"))
        times["dies"] += 1
        if times["dies"] == 1:
            threading.Timer(0.2, kill_engine, (cluster,)).start()
        job.run(inputs(), dict(mode="many"))


@pytest.mark.fault("delay 50ms on all")
def test_the_engine_dies_each_time(cluster):
    with cluster.job(2, "the engine dies again") as job:
        threading.Timer(0.2, kill_engine, (cluster,)).start()
        job.run(inputs(), dict(mode="many"))


def test_the_disk_for_inputs_is_full(cluster):
    staging = str(cluster.cluster.hosts[0].folders.staging)
    with cluster.job(2, "no room") as job:
        linux.mount("tmpfs", staging, "tmpfs", 0, "size=64k")
        try:
            job.run([dict(x=np.zeros(1 << 20))] * 2, dict(mode="once"))
        finally:
            linux.unmount(staging)
"""
_TIMED = """
import numpy as np


def test_time(cluster, measure):
    given = [dict(x=np.arange(4.0) + rank) for rank in range(2)]
    with cluster.job(2, "busy") as job:
        best = measure.best_of(
            lambda: job.run(given, dict(mode="compute")).elapsed_s, enough=1e-6, most=4
        )
    measure.at_most("time", best.best, 1e-6, "s", else_="Too slow.")
"""
_SOLUTION = """
import numpy as np


def work(comm, x, mode):
    total = np.empty_like(x)
    for _ in range(10 if mode == "many" else 1):
        comm.Allreduce(x, total)
    if mode == "compute":
        for _ in range(400):
            np.sort(np.random.rand(10_000))
    return total
"""


@pytest.fixture(scope="module")
def checks(grade_package) -> dict[str, dict[str, Any]]:
    return grade_package(runtime="mpi", solution=_SOLUTION, checks=_CHECKS, hosts=2, case_s=3)


def test_a_network_engine_that_dies_is_replaced_and_the_check_run_again(checks) -> None:
    check = checks["test_the_engine_dies_once"]
    assert check["outcome"] == "passed", check["message"]


def test_a_network_engine_that_dies_twice_makes_the_check_unfit(checks) -> None:
    check = checks["test_the_engine_dies_each_time"]
    assert check["outcome"] == "unfit", check["message"]
    assert check["message"] == "the network-fault engine died while the job ran; run again"


def test_no_room_for_the_inputs_makes_the_check_unfit(checks) -> None:
    check = checks["test_the_disk_for_inputs_is_full"]
    assert check["outcome"] == "unfit", check["message"]
    assert "No space left on device" in check["message"]


def test_a_machine_that_others_use_up_makes_a_time_inconclusive(grade_package) -> None:
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        checks = grade_package(runtime="mpi", solution=_SOLUTION, checks=_TIMED, hosts=2, case_s=10)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    check = checks["test_time"]
    assert check["outcome"] == "inconclusive", check["message"]
    assert "stop them and run again" in check["message"]
