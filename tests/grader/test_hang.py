"""The cause of a hang is named from what each rank is blocked on."""

from __future__ import annotations

from grader.hang import Standing, blocked_on, explain, parse_stack
from grader.rank.trace import BLOCKING, COLLECTIVE, POSTED, TraceRecord


def record(operation, way=BLOCKING, peer=-1, size=8, end=None, index=0):
    return TraceRecord(index, operation, way, peer, 0, size, 1.0, end, 41)


def standing(rank, *blocked, finished=False, line=41, dead=False):
    return Standing(rank, tuple(blocked), finished, line, dead)


def test_a_cycle_of_sends_is_named_with_its_ranks_and_the_remedy() -> None:
    hang = explain(
        [standing(r, record("Send", peer=(r + 1) % 3, size=1 << 20)) for r in range(3)], "s.py"
    )
    assert hang.cycle == (0, 1, 2)
    assert "0 -> 1 -> 2 -> 0" in hang.cause
    assert "1,048,576 bytes" in hang.cause
    assert "rank 1 waits in Send to rank 2 (1,048,576 bytes), s.py:41." in hang.cause


def test_two_ranks_that_both_receive_first_are_a_cycle() -> None:
    ranks = [standing(0, record("Recv", peer=1)), standing(1, record("Recv", peer=0))]
    hang = explain(ranks, "s.py")
    assert hang.cycle == (0, 1)
    assert "cycle of waits" in hang.cause


def test_a_rank_missing_from_a_collective_is_named() -> None:
    ranks = [standing(r, record("Barrier", COLLECTIVE)) for r in range(3)]
    hang = explain([*ranks, standing(3)], "s.py")
    assert "stand in Barrier" in hang.cause
    assert "rank 3 never came" in hang.cause


def test_mismatched_collectives_are_named() -> None:
    hang = explain(
        [standing(0, record("Bcast", COLLECTIVE)), standing(1, record("Barrier", COLLECTIVE))],
        "s.py",
    )
    assert "different collectives: Barrier, Bcast" in hang.cause


def test_waiting_for_a_rank_that_returned_is_named() -> None:
    hang = explain([standing(0, record("Recv", peer=1)), standing(1, finished=True)], "s.py")
    assert "Rank 0 waits for rank 1, which has already returned" in hang.cause


def test_waiting_for_a_dead_rank_is_named() -> None:
    hang = explain([standing(0, record("Recv", peer=1)), standing(1, dead=True)], "s.py")
    assert "Rank 1 is gone" in hang.cause


def test_a_rank_that_computes_on_is_named_with_its_line() -> None:
    hang = explain([standing(0, line=7), standing(1, finished=True)], "s.py")
    assert "s.py:7" in hang.cause
    assert "endless loop" in hang.cause


def test_a_wait_blocks_on_the_posted_operations_still_open() -> None:
    records = [
        record("Irecv", POSTED, peer=2, index=0),
        record("Isend", POSTED, peer=3, end=2.0, index=1),
        record("Waitall", index=2),
    ]
    assert [r.operation for r in blocked_on(records)] == ["Irecv"]


def test_a_posted_operation_alone_blocks_nobody() -> None:
    assert blocked_on([record("Irecv", POSTED, peer=2)]) == ()


def test_a_sendrecv_waits_both_ways() -> None:
    records = [
        record("Sendrecv-send", POSTED, peer=1, index=0),
        record("Sendrecv", peer=3, index=1),
    ]
    assert [r.peer for r in blocked_on(records)] == [1, 3]


def test_only_the_learners_own_frames_are_kept() -> None:
    dump = (
        "Current thread 0x1 (most recent call first):\n"
        '  File "/usr/lib/python3/numpy/core.py", line 3 in dot\n'
        '  File "/distlab/submission/solution.py", line 41 in ring\n'
        '  File "/distlab/submission/solution.py", line 12 in allreduce\n'
    )
    assert parse_stack(dump, "/distlab/submission", "solution.py") == (
        "solution.py:41 in ring",
        "solution.py:12 in allreduce",
    )
