"""MPI submissions that hang or end in each way there is, run for real."""

from __future__ import annotations

import pytest

_SOLUTION = """
import os
import sys
import threading
import time
import numpy as np
from mpi4py import MPI


def work(comm, x, mode):
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    other, total = np.zeros_like(x), np.zeros_like(x)
    if mode == "sends":
        large = np.zeros(1 << 20)
        comm.Send(large, right)  # sends
        comm.Recv(large, left)
    if mode == "receives":
        comm.Recv(other, left)
    if mode == "one message too many":
        if rank == 0:
            comm.Recv(other, 1, tag=7)  # one
        return x
    if mode == "waits":
        request = comm.Irecv(other, left)
        unrelated = comm.Irecv(total, MPI.ANY_SOURCE, tag=9)
        request.Wait()  # waits
    if mode == "forgotten":
        if rank != 2:
            comm.Barrier()  # forgotten
        return x
    if mode == "mixed":
        comm.Barrier() if rank else comm.Bcast(x, root=0)
    if mode == "roots":
        comm.Reduce(x, total, root=rank)  # small
        comm.Bcast(np.zeros(1 << 20), root=(rank + 1) % size)  # roots
    if mode == "turns" and rank == 1:
        while True:  # turns
            pass
    if mode == "in a thread" and rank == 1:
        thread = threading.Thread(target=time.sleep, args=(60,))
        thread.start()
        thread.join()  # thread
    if mode == "os exit" and rank == 1:
        os._exit(0)
    if mode == "exit" and rank == 1:
        sys.exit("enough")
    if mode == "aborts" and rank == 1:
        comm.Abort(5)
    if mode == "crashes" and rank == 1:
        os.kill(os.getpid(), 11)
    if mode == "killed" and rank == 1:
        os.kill(os.getpid(), 9)
    if mode == "raises" and rank == 3:
        raise ValueError("an odd count")
    if mode == "raises after an error elsewhere":
        if rank == 3:
            time.sleep(0.2)
            raise ValueError("[1] Connection closed by peer")
        if rank == 2:
            raise KeyError("the root")
    if mode == "refused":
        getattr(comm, "b" + "cast")(1)
    if mode == "refused and untraced":
        getattr(comm, "Allreduce" + "_init")(x, total)
    comm.Allreduce(x, total)
    return total
"""

_MODES = (
    "right",
    "sends",
    "receives",
    "one message too many",
    "waits",
    "forgotten",
    "mixed",
    "roots",
    "turns",
    "in a thread",
    "os exit",
    "exit",
    "killed",
    "aborts",
    "crashes",
    "raises",
    "raises after an error elsewhere",
    "refused",
    "refused and untraced",
)


@pytest.fixture(scope="module")
def checks(grade_package):
    return grade_package(
        runtime="mpi",
        solution=_SOLUTION,
        modes=_MODES,
        case_s=1.5,
        refused=("bcast", "Allreduce_init"),
    )


def line(text: str) -> str:
    return f"solution.py:{_SOLUTION[: _SOLUTION.index(text)].count(chr(10)) + 1}"


def test_a_right_one_passes(checks) -> None:
    assert (checks["right"]["outcome"], checks["right"]["message"]) == ("passed", "")


@pytest.mark.parametrize(
    ("mode", "says", "at"),
    [
        ("sends", "A cycle of sends: 0 -> 1 -> 2 -> 3 -> 0", "# sends"),
        ("receives", "A cycle of waits: 0 -> 3 -> 2 -> 1 -> 0", "comm.Recv(other, left)"),
        ("one message too many", "rank 1, which has already returned", "# one"),
        ("waits", "A cycle of waits: 0 -> 3 -> 2 -> 1 -> 0", "# waits"),
        ("forgotten", "stand in Barrier, which needs everyone; rank 2 never came", "# forgotten"),
        ("mixed", "in different collectives: Allreduce, Barrier", "comm.Barrier() if"),
        ("roots", "disagree about the root of", "root=rank"),
        ("turns", "rank 1 never came (rank 1 computes at solution.py:", "while True"),
        ("in a thread", "rank 1 never came (rank 1 computes at solution.py:", "# thread"),
    ],
)
def test_a_hang_is_explained(checks, mode: str, says: str, at: str) -> None:
    check = checks[mode]
    assert check["outcome"] == "timed out"
    assert says in check["message"]
    where = int(line(at).partition(":")[2])
    assert any(f"solution.py:{n}" in check["message"] for n in (where, where + 1))
    assert check["jobs"][0]["hang"]["cause"] in check["message"]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("os exit", "rank 1 on node2 ended with status 0"),
        ("exit", "rank 1 called sys.exit(enough) at solution.py:"),
        ("killed", "rank 1 on node2 was killed by SIGKILL"),
        ("aborts", "rank 1 on node2 ended with status 5"),
        ("crashes", "rank 1 on node2 was killed by SIGSEGV"),
        ("raises", "rank 3 raised ValueError at solution.py:"),
        ("raises after an error elsewhere", "rank 2 raised KeyError at solution.py:"),
    ],
)
def test_the_first_cause_of_a_crash_is_named(checks, mode: str, says: str) -> None:
    assert checks[mode]["outcome"] == "crashed"
    assert checks[mode]["message"].startswith(says)


@pytest.mark.parametrize("mode", ["refused", "refused and untraced"])
def test_a_call_refused_at_run_time_is_refused(checks, mode: str) -> None:
    assert checks[mode]["outcome"] == "refused"
    assert " is refused in this problem" in checks[mode]["message"]
