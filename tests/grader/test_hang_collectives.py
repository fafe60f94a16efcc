"""Hangs in collectives: who is missing, who disagrees, and who only waits for one message."""

from __future__ import annotations

from grader.hang import Standing, blocked_on, explain, parse_stack
from grader.rank.trace import BLOCKING, COLLECTIVE, POSTED, POSTED_COLLECTIVE, TraceRecord


def inside(rank: int, name: str, peer: int = -1, size: int = 8, members: int = 0) -> Standing:
    record = TraceRecord(0, name, COLLECTIVE, peer, -1, size, 1.0, None, 41, members)
    return Standing(rank, (record,), False, 41)


def test_a_root_does_not_wait_for_itself() -> None:
    hang = explain(
        [inside(0, "Bcast", 0), inside(1, "Bcast", 0), Standing(2, (), False, 9)], "s.py"
    )
    assert hang.cycle == ()
    assert "Ranks 0, 1 stand in Bcast, which needs everyone; rank 2 never came" in hang.cause
    assert "(rank 2 computes at s.py:9)" in hang.cause


def test_roots_that_differ_are_no_cycle_of_waits() -> None:
    hang = explain([inside(0, "Bcast", 1), inside(1, "Bcast", 0)], "s.py")
    assert (
        "disagree about the root of Bcast: rank 0 names rank 1, rank 1 names rank 0" in hang.cause
    )


def test_sizes_that_differ_are_named() -> None:
    hang = explain([inside(0, "Allreduce", size=8), inside(1, "Allreduce", size=16)], "s.py")
    assert "in Allreduce with different sizes: rank 0 8 bytes, rank 1 16 bytes" in hang.cause


def test_only_members_of_a_group_are_missed() -> None:
    ranks = [
        inside(0, "all_reduce", members=0b0011),
        Standing(1, (), True, 0),
        inside(2, "barrier", members=0b1100),
        inside(3, "barrier", members=0b1100),
    ]
    hang = explain(ranks, "s.py", "torch")
    assert hang.cause.startswith("Rank 0 stands in all_reduce, which needs everyone; rank 1 never")


def test_a_cycle_of_messages_counts_before_those_who_wait_in_a_barrier() -> None:
    waits = [
        Standing(r, (TraceRecord(0, "Recv", BLOCKING, 1 - r, 0, 8, 1.0, None, 5),), False, 5)
        for r in range(2)
    ]
    hang = explain([*waits, inside(2, "Barrier")], "s.py")
    assert "A cycle of waits: 0 -> 1 -> 0" in hang.cause


def test_a_wait_for_one_request_is_held_up_by_that_one() -> None:
    records = [
        TraceRecord(0, "isend", POSTED, 3, 0, 8, 1.0, None, 4),
        TraceRecord(1, "all_reduce", POSTED_COLLECTIVE, -1, -1, 8, 1.0, None, 5, 0b111),
        TraceRecord(2, "wait", BLOCKING, -1, -1, 0, 1.1, None, 6, 0, awaits=1),
    ]
    assert [r.operation for r in blocked_on(records)] == ["all_reduce"]


def test_the_remedy_is_in_the_words_of_the_library() -> None:
    ranks = [
        Standing(r, (TraceRecord(0, "send", BLOCKING, 1 - r, 0, 8, 1.0, None, 5),), False, 5)
        for r in range(2)
    ]
    assert "batch_isend_irecv" in explain(ranks, "s.py", "torch").cause
    assert "Sendrecv" in explain(ranks, "s.py", "mpi").cause


def test_the_interrupted_thread_counts_before_others() -> None:
    dump = (
        "Thread 0x2 (most recent call first):\n"
        '  File "/distlab/submission/solution.py", line 9 in watch\n\n'
        "Current thread 0x1 (most recent call first):\n"
        '  File "/distlab/submission/odd:name.py", line 41 in ring\n'
        "Current thread 0x1 (most recent call first):\n"
        '  File "/distlab/submission/solution.py", line 41 in ring\n'
    )
    folder = "/distlab/submission"
    assert parse_stack(dump, folder, "solution.py") == ("odd:name.py:41 in ring",)
    only_other = dump.partition("Current")[0] + "Current thread 0x1 (most recent call first):\n"
    assert parse_stack(only_other, folder, "solution.py") == ("solution.py:9 in watch",)


def dead(rank: int) -> Standing:
    return Standing(rank, (), False, 0, dead=True)


def test_an_agreement_waits_for_the_living_only() -> None:
    hang = explain([inside(0, "Agree"), Standing(1, (), False, 9), dead(2)], "s.py")
    assert "Rank 0 stands in Agree, which needs everyone who lives; rank 1 never came" in hang.cause


def test_a_rank_left_in_a_collective_after_a_death_calls_for_revoke() -> None:
    hang = explain([inside(0, "Agree"), inside(1, "Allreduce"), dead(2)], "s.py")
    assert "Rank 2 is gone; rank 1 was left in Allreduce by those who noticed it." in hang.cause
    assert "calls Revoke first" in hang.cause


def test_a_collective_that_misses_a_dead_rank_says_so() -> None:
    hang = explain([inside(0, "Barrier"), inside(1, "Barrier"), dead(2)], "s.py")
    assert hang.cause.startswith("Ranks 0, 1 stand in Barrier, which needs everyone; rank 2 is")
