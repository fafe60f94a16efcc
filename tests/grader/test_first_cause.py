"""Of several ranks in trouble, the one that had it first is named."""

from __future__ import annotations

from cluster.launchers.job import RankEnd
from grader.ended import Crashed, RefusedCallSeen
from grader.first_cause import first_cause


def error(kind: str, text: str, at: float = 1.0, status: str = "error") -> dict[str, object]:
    return {"status": status, "type": kind, "text": text, "at": at, "frames": ["s.py:3 in f"]}


def test_all_well_is_no_cause() -> None:
    assert first_cause({0: {"status": "done"}, 1: {}}, [], [], "while it ran") is None


def test_the_earliest_error_counts() -> None:
    statuses = {0: error("ValueError", "late", 2.0), 3: error("KeyError", "early", 1.0)}
    cause = first_cause(statuses, [], [], "while it ran")
    assert isinstance(cause, Crashed)
    assert cause.message == "rank 3 raised KeyError at s.py:3 in f while it ran: early"


def test_an_echo_of_a_dead_peer_counts_last() -> None:
    statuses = {
        0: error("RuntimeError", "[gloo] Connection closed by peer [10.67.0.2]:1", 1.0),
        1: error("ValueError", "the root", 2.0),
    }
    cause = first_cause(statuses, [], [], "while it ran")
    assert cause is not None and cause.message.startswith("rank 1 raised ValueError")


def test_a_dead_rank_counts_before_what_others_raise() -> None:
    statuses = {0: error("LostNeighbour", "in my own words")}
    cause = first_cause(statuses, [RankEnd(2, "node3", -9)], [], "while it ran")
    assert cause is not None and cause.message.startswith("rank 2 on node3 was killed by SIGKILL")
    cause = first_cause(statuses, [RankEnd(2, "node3", -9)], ["node3"], "while it ran")
    assert cause is not None
    assert cause.message == "rank 2 is gone while it ran: its host node3 is down"


def test_a_rank_that_answered_may_end() -> None:
    assert first_cause({2: {"status": "done"}}, [RankEnd(2, "node3", 0)], [], "") is None


def test_a_refused_call_counts_before_all_else() -> None:
    statuses = {
        0: error("ValueError", "early", 1.0),
        1: error("RefusedCall", "Bcast is refused", 2.0, "refused"),
    }
    ends = [RankEnd(2, "node3", -9)]
    assert isinstance(first_cause(statuses, ends, [], "while it ran"), RefusedCallSeen)


def test_what_ranks_write_may_be_anything() -> None:
    odd = {0: {"status": ["x"], "type": 3, "text": None, "frames": {}, "at": "soon"}}
    cause = first_cause(odd, [], [], "while it ran")
    assert cause is not None and cause.message.startswith("rank 0 raised 3")
