"""The trace keeps to the Trace Event Format, and its arrows join what belongs together."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

from grader.report.perfetto import trace_text, write_trace
from grader.result import RankTrace, Span


def events(result):
    return json.loads(trace_text(result))["traceEvents"]


def ns(microseconds):
    return round(microseconds * 1000)


def of_phase(found, phase):
    return [event for event in found if event["ph"] == phase]


def messages(make_result, *traces):
    """The flows of a job in which the ranks did this."""
    result = make_result("passed")
    check = result.checks[0]
    job = replace(check.jobs[0], ranks=traces, faults=())
    return of_phase(events(replace(result, checks=(replace(check, jobs=(job,)),))), "s")


def test_every_event_has_the_fields_of_its_phase(any_result):
    for event in events(any_result):
        assert event["ph"] in "MXsfC"
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        assert isinstance(event["name"], str) and event["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["args"], dict)
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_hosts_are_processes_and_ranks_are_threads(make_result):
    found = of_phase(events(make_result("timed out")), "M")
    processes = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert "test_large_messages_do_not_deadlock: 4 ranks, 1 MiB: node2" in processes
    threads = {e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert {"rank 0", "rank 1", "rank 2", "rank 3"} <= threads
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in of_phase(events(make_result("timed out")), "X")} <= named


def test_no_two_events_of_a_thread_overlap_in_part(any_result):
    threads = defaultdict(list)
    for event in of_phase(events(any_result), "X"):
        begin = ns(event["ts"])
        threads[event["pid"], event["tid"]].append((begin, begin + ns(event["dur"])))
    for spans in threads.values():
        around = []
        for begin, stop in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or stop <= around[-1]
            around.append(stop)


def test_operations_carry_peer_tag_bytes_and_line(make_result):
    found = of_phase(events(make_result("timed out")), "X")
    send = next(e for e in found if e["args"].get("unfinished"))
    assert send["args"] == {
        "peer": 1,
        "tag": 7,
        "bytes": 1048576,
        "line": "solution.py:41",
        "unfinished": True,
    }


def test_faults_have_their_own_track(make_result):
    found = of_phase(events(make_result("failed")), "X")
    faults = [event for event in found if event["cat"] == "fault"]
    assert {event["name"] for event in faults} == {"delay 20 ms", "rate 200 Mbit/s"}
    assert {e["pid"] for e in faults}.isdisjoint({e["pid"] for e in found if e not in faults})


def test_flows_begin_in_a_send_and_end_in_the_receive_with_its_tag(make_result):
    found = events(make_result("failed"))
    begun = {event["id"]: event for event in of_phase(found, "s")}
    ended = {event["id"]: event for event in of_phase(found, "f")}
    assert begun and begun.keys() == ended.keys()

    def enclosing(point):
        return next(
            e
            for e in of_phase(found, "X")
            if (e["pid"], e["tid"]) == (point["pid"], point["tid"])
            and ns(e["ts"]) <= ns(point["ts"]) < ns(e["ts"]) + ns(e["dur"])
        )

    for number, start in begun.items():
        end = ended[number]
        assert end["bp"] == "e" and start["ts"] < end["ts"]
        send, receive = enclosing(start), enclosing(end)
        assert send["name"] == "Isend" and receive["name"] == "Recv"
        assert send["args"]["tag"] == receive["args"]["tag"]


def test_messages_are_paired_in_order(make_result):
    sends = tuple(Span("communication", "Send", n, n + 0.5, 1, 5, 8) for n in range(3))
    receives = tuple(Span("communication", "Recv", n, n + 0.7, 0, 5, 8) for n in range(2))
    found = messages(make_result, RankTrace(0, "node1", sends), RankTrace(1, "node1", receives))
    assert [flow["ts"] for flow in found] == [0.0, 1e6]


def test_nothing_is_paired_where_a_receive_took_from_anyone(make_result):
    sends = (Span("communication", "Send", 0, 1, 1, 5, 8),)
    receives = (
        Span("communication", "Recv", 0, 1, -2, 5, 8),
        Span("communication", "Recv", 1, 2, 0, 5, 8),
    )
    assert not messages(make_result, RankTrace(0, "node1", sends), RankTrace(1, "node1", receives))


def test_bytes_are_counted_up(make_result):
    counters = of_phase(events(make_result("passed")), "C")
    totals = [event["args"]["bytes"] for event in counters if event["pid"] == counters[0]["pid"]]
    assert totals == sorted(totals) and totals[0] == 0 and totals[-1] > 0


def test_the_trace_is_one_json_object_in_a_file(make_result, tmp_path):
    path = tmp_path / "trace.json"
    write_trace(make_result("hostile"), path)
    assert json.loads(path.read_text(encoding="utf-8"))["displayTimeUnit"] == "ms"
