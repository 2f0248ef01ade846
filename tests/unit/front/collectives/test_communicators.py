"""Communicators: created, shared, used in order, and aborted on all ranks together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.collectives import MAX_COPY
from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives.communicators import MAX_IDLE, Communicators
from hearthd.front.collectives.flight_recorder import FlightRecorder
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, Presentation, RankLocation
from hearthd.front.collectives.order import CollectiveOrder
from tests.support.front.collective_parts import complete, key, location, ops, refusal_in, status_of

FIRST = "nonce-1"


def message(op: str, comm: str = FIRST, **more: Any) -> dict[str, Any]:
    return {"op": op, "comm": comm, **more}


def create_communicator(communicators: Communicators, match: Match, comm: str = FIRST) -> list[DeviceMessage]:
    """Submits the first operation of new ranks and has them join. Returns the messages that the last join causes."""
    assert [send.body for send in communicators.submit(match) if send.body["op"] != "abort"] == [
        {"op": "create_id", "comm": comm, "group": match.key.group, "ranks": len(match.locations)}
    ]
    joins = communicators.on_message(match.locations[0], message("id", comm, unique_id="u"))
    assert [(send.location, send.body["rank"]) for send in joins] == [
        (rank_location, rank) for rank, rank_location in enumerate(match.locations)
    ]
    sends: list[DeviceMessage] = []
    for rank_location in match.locations:
        assert not sends
        sends = communicators.on_message(rank_location, message("joined", comm))
    return sends


def new_communicators(recorder: FlightRecorder | None = None) -> Communicators:
    return Communicators(FlightRecorder() if recorder is None else recorder, CollectiveOrder(), "nonce")


def ready(*members: int, recorder: FlightRecorder | None = None) -> Communicators:
    communicators = new_communicators(recorder)
    match = complete(*members)
    if recorder is not None:
        for rank, presentation in match.presentations.items():
            recorder.record_presentation(match.key, rank, presentation.operations)
    create_communicator(communicators, match)
    return communicators


def test_release_message_has_rank_and_index() -> None:
    communicators = new_communicators()
    sends = create_communicator(communicators, complete(2, 0, 1))
    assert [send.location for send in sends] == [location(2), location(0), location(1)]
    assert [send.body for send in sends] == [
        {
            "op": "go", "channel": 10 + rank, "group": "", "devices": [2, 0, 1], "sequence": 1, "comm": FIRST,
            "rank": rank, "ranks": 3, "index": 1,
        }
        for rank in range(3)
    ]  # fmt: skip
    assert [send.body["index"] for send in communicators.submit(complete(2, 0, 1, sequence=2))] == [2, 2, 2]
    assert communicators.deadline is None


def test_sessions_share_the_communicator_of_the_same_ranks_only() -> None:
    communicators = ready(0, 1)
    assert ops(communicators.submit(complete(0, 1, owner="t"))) == [(0, "go"), (1, "go")]
    assert ops(communicators.submit(complete(1, 0))) == [(1, "create_id")], "another order"
    assert ops(communicators.submit(complete(0, 1, process=2))) == [(0, "create_id")], "other processes"
    assert ops(communicators.submit(over_daemons("aa"))) == [(0, "create_id")], (
        "a group over daemons has a separate communicator"
    )
    assert len(communicators) == 4


def copy(count: int = 8, *, sequence: int = 1, receives: int = 1, **more: Any) -> Match:
    """Returns a send from device 0 to device 1 and its receive, or a batch of receives."""
    match = complete(0, 1, sequence=sequence, **more)
    send = {"kind": "send", "count": count, "dtype": "float32", "reduce": "", "root": 0, "peer": 1}
    recv = {**send, "kind": "recv", "peer": 0}
    for rank, operations in ((0, [send] * receives), (1, [recv] * receives)):
        match.presentations[rank] = match.presentations[rank]._replace(operations=operations)
    return match


def test_copies_between_two_devices_have_a_communicator_without_nccl() -> None:
    communicators = ready(0, 1)
    (request,) = communicators.submit(copy(sequence=2))
    assert request.body["op"] == "create_id" and request.body["transport"] == "copy"
    comm = request.body["comm"]
    joins = communicators.on_message(location(0), message("id", comm, unique_id="u"))
    assert [send.body["transport"] for send in joins] == ["copy", "copy"]
    communicators.on_message(location(0), message("joined", comm))
    sends = communicators.on_message(location(1), message("joined", comm))
    assert [send.body["comm"] for send in sends] == [comm, comm]
    assert [send.body["comm"] for send in communicators.submit(copy(sequence=3))] == [comm, comm], "kept"
    for match in (copy(sequence=4, receives=2), copy(MAX_COPY // 4 + 1, sequence=5), complete(0, 1, sequence=6)):
        assert {send.body["comm"] for send in communicators.submit(match)} == {FIRST}, "no copy"


def over_daemons(group: str, sequence: int = 1) -> Match:
    """Returns an operation of device 0 on this node and device 0 of node 1."""
    parts = {rank: Presentation(RankLocation(rank, 0, 0), 10 + rank, []) for rank in range(2)}
    return Match(MatchKey(f"group:{group}", (0, 1), sequence), 5.0, parts)


def test_groups_over_daemons_have_separate_communicators() -> None:
    communicators = new_communicators()
    sends = create_communicator(communicators, over_daemons("aa"))
    assert [(send.location.node, send.body["group"], send.body["devices"]) for send in sends] == [
        (0, "aa", []),
        (1, "aa", []),
    ]
    create_communicator(communicators, over_daemons("bb"), "nonce-2")
    progress = message("progress", done=1)
    assert communicators.on_message(RankLocation(1, 0, 0), message("failed"), owner="group:bb") == [], (
        "not its communicator"
    )
    assert communicators.on_message(RankLocation(1, 0, 0), progress, owner="group:aa") == []
    assert communicators.on_loss(1, "its connection broke") == [], "node 1 of an unknown group"
    sends = communicators.on_loss(1, "its connection broke", {"group:aa"})
    assert [(send.location.node, send.body["op"], send.body["group"]) for send in sends] == [(0, "abort", "aa")]
    assert "node 1 was lost: its connection broke" in sends[0].body["reason"]
    sends = communicators.end_owner("group:bb", Refusal(Reason.COMMUNICATOR_FAILED, "It was left."))
    assert [(send.location.node, send.body["op"]) for send in sends] == [(0, "abort"), (1, "abort")]
    assert status_of(sends[1]).message == "It was left."
    assert len(communicators) == 0


def test_a_failed_join_fails_the_queue_and_aborts_the_others() -> None:
    communicators = new_communicators()
    communicators.submit(complete())
    communicators.submit(complete(sequence=2))
    communicators.on_message(location(0), message("id", unique_id="u"))
    status = to_text(Refusal(Reason.INTERNAL, "no NCCL"))
    sends = communicators.on_message(location(1), message("join_failed", status=status))
    assert ops(sends) == [(0, "abort"), (0, "fail"), (1, "fail"), (0, "fail"), (1, "fail")]
    refusal = refusal_in(sends[1])
    assert refusal.reason == Reason.COMMUNICATOR_FAILED and "no NCCL" in refusal.message
    assert refusal.details["failed"] == "1"
    assert communicators.on_message(location(0), message("joined")) == []
    assert communicators.submit(complete(sequence=3)) == [
        DeviceMessage(location(0), {"op": "create_id", "comm": "nonce-2", "group": "", "ranks": 2})
    ]
    assert communicators.aborts == 1


@pytest.mark.parametrize("status", ["", "!", "AAAA"])
def test_a_failed_join_without_a_reason(status: str) -> None:
    communicators = new_communicators()
    communicators.submit(complete())
    sends = communicators.on_message(location(0), message("join_failed", status=status))
    assert refusal_in(sends[1]).reason == Reason.COMMUNICATOR_FAILED


def test_communicator_creation_times_out() -> None:
    communicators = new_communicators()
    communicators.submit(complete(deadline=5.0))
    communicators.on_message(location(0), message("id", unique_id="u"))
    communicators.on_message(location(0), message("joined"))
    assert communicators.deadline == 5.0 and communicators.expire(4.9) == []
    sends = communicators.expire(5.0)
    assert ops(sends) == [(0, "fail"), (1, "fail"), (0, "abort"), (1, "abort")]
    refusal = refusal_in(sends[0])
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and refusal.details["missing"] == "1"
    assert len(communicators) == 0


def test_timeout_of_one_operation_does_not_end_longer_waits() -> None:
    """The timeout of one operation does not abort the communicator for which an operation with a longer timeout
    waits."""
    communicators = new_communicators()
    communicators.submit(complete(deadline=2.0))
    communicators.submit(complete(sequence=2, deadline=9.0))
    communicators.submit(complete(sequence=3, deadline=1.0))
    assert communicators.deadline == 1.0
    assert [send.body["sequence"] for send in communicators.expire(3.0)] == [3, 3, 1, 1]
    communicators.on_message(location(0), message("id", unique_id="u"))
    communicators.on_message(location(0), message("joined"))
    sends = communicators.on_message(location(1), message("joined"))
    assert [(send.body["op"], send.body["sequence"], send.body["index"]) for send in sends] == [("go", 2, 1)] * 2


def test_a_lost_device_aborts_its_communicators_on_survivors() -> None:
    communicators = ready()
    sends = communicators.on_loss(location(0), "boom")
    assert ops(sends) == [(1, "abort")]
    assert sends[0].body["reason"] == "device 0 was lost: boom"
    assert status_of(sends[0]).reason == Reason.COMMUNICATOR_FAILED
    assert "device 0 was lost: boom" in status_of(sends[0]).message
    assert communicators.on_loss(location(0), "boom") == []
    assert ops(communicators.submit(complete(sequence=2))) == [(0, "create_id")], "rebuilt"
    assert ops(communicators.on_loss(location(0), "boom")) == [(1, "abort"), (1, "fail")]


def test_intended_end_of_a_device_process_aborts_an_idle_communicator_without_a_failure() -> None:
    communicators = ready()
    assert ops(communicators.on_loss(location(0), "it ended", intended=True)) == [(1, "abort")], "an operation runs"
    assert len(communicators) == 0 and communicators.aborts == 1
    communicators = ready()
    for rank in (0, 1):
        communicators.on_message(location(rank), message("progress", done=1))
    assert ops(communicators.on_loss(location(0), "it ended", intended=True)) == [(1, "abort")]
    assert len(communicators) == 0 and communicators.aborts == 0 and not communicators.failed


def test_processes_of_a_device_have_separate_communicators() -> None:
    """Two sessions use the same devices, one of them in separate processes."""
    communicators = new_communicators()
    communicators.submit(complete(process=1))
    communicators.submit(complete(process=2, owner="t"))
    assert communicators.on_message(location(0, 1), message("id", "nonce-2", unique_id="u")) == [], "another process's"
    sends = communicators.on_message(location(0, 2), message("id", "nonce-2", unique_id="u"))
    assert [(send.location, send.body["op"]) for send in sends] == [(location(0, 2), "join"), (location(1, 2), "join")]
    communicators.on_message(location(0, 2), message("joined", "nonce-2"))
    assert communicators.on_message(location(1, 1), message("joined", "nonce-2")) == []
    assert ops(communicators.on_message(location(1, 2), message("joined", "nonce-2"))) == [(0, "go"), (1, "go")]
    sends = communicators.on_loss(location(0, 1), "boom")
    assert [send.location for send in sends if send.body["op"] == "abort"] == [location(1, 1)]
    assert ops(communicators.submit(complete(process=2, owner="t", sequence=2))) == [(0, "go"), (1, "go")]


def test_reported_failure_aborts_every_rank_with_the_reason() -> None:
    recorder = FlightRecorder()
    sends = ready(recorder=recorder).on_message(location(1), message("failed", reason="unhandled system error"))
    assert ops(sends) == [(0, "abort"), (1, "abort")]
    for send in sends:
        refusal = status_of(send)
        assert refusal.reason == Reason.COMMUNICATOR_FAILED and refusal.details["failed"] == "1"
        assert "device 1 reports: unhandled system error" in refusal.message
        assert refusal.details["recorder"].startswith("1 all_reduce 8 float32 sum: launched, presented by ranks 0, 1")
    history = recorder.history("s", (0, 1))
    assert history is not None and history.aborts == 1 and history.state == "failed"
    assert history.operations[1].state == "failed"


def test_an_operation_that_does_not_finish_names_the_lagging_ranks() -> None:
    communicators = ready(4, 2, 3)
    for sequence in range(2, 5):
        communicators.submit(complete(4, 2, 3, sequence=sequence))
    for device, done in ((4, 3), (2, 2), (3, 1)):
        assert communicators.on_message(location(device), message("progress", done=done)) == []
    sends = communicators.on_message(location(2), message("failed", reason="timeout", timed_out=True, sequence=3))
    assert ops(sends) == [(4, "abort"), (2, "abort"), (3, "abort")]
    refusal = status_of(sends[0])
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT
    assert refusal.details["missing"] == "2, 3" and refusal.details["sequence"] == "3"
    assert "Operation 3 of group [4, 2, 3]" in refusal.message and "by devices 2, 3" in refusal.message
    assert communicators.failed == {Reason.COLLECTIVE_TIMEOUT: 3}, "all operations in progress"


def test_errors_do_not_reveal_operations_of_other_sessions() -> None:
    recorder = FlightRecorder()
    communicators = ready(recorder=recorder)
    other_match = complete(owner="t", sequence=77)
    for rank, presentation in other_match.presentations.items():
        recorder.record_presentation(other_match.key, rank, presentation.operations)
    communicators.submit(other_match)
    refusal = status_of(communicators.on_message(location(1), message("failed", timed_out=True, sequence=77))[0])
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT
    assert "recorder" not in refusal.details and "sequence" not in refusal.details and "77" not in refusal.message


def test_progress_is_recorded_when_all_ranks_have_finished() -> None:
    recorder = FlightRecorder()
    communicators = ready(recorder=recorder)
    history = recorder.history("s", (0, 1))
    assert history is not None and history.state == "ready"
    communicators.on_message(location(0), message("progress", done=1))
    assert history.operations[1].state == "launched"
    communicators.on_message(location(1), message("progress", done=10**9))
    assert history.operations[1].state == "done"
    communicators.submit(complete(sequence=2))
    (comm,) = communicators
    assert not comm.is_idle, "a report about an operation that does not exist does not count for later ones"


def test_idle_communicators_are_bounded() -> None:
    communicators = new_communicators()
    evicted: list[str] = []
    for number in range(1, MAX_IDLE + 4):
        match = complete(0, number)
        sends = communicators.submit(match)
        evicted += [send.body["comm"] for send in sends if send.body["op"] == "abort"]
        comm = f"nonce-{number}"
        communicators.on_message(location(0), message("id", comm, unique_id="u"))
        for device in (0, number):
            communicators.on_message(location(device), message("joined", comm))
        for device in (0, number) if number != 2 else (0,):  # one rank has not finished
            communicators.on_message(location(device), message("progress", comm, done=1))
        if number == 10:
            communicators.submit(complete(0, 1, sequence=2))  # the communicator is no longer the least recently used
            for device in (0, 1):
                communicators.on_message(location(device), message("progress", "nonce-1", done=2))
    assert evicted == ["nonce-3"] * 2 + ["nonce-4"] * 2 + ["nonce-5"] * 2
    assert len(communicators) == MAX_IDLE
    assert communicators.aborts == 0, "no operation has failed"


def test_a_closed_session_leaves_the_communicator() -> None:
    communicators = new_communicators()
    communicators.submit(complete(owner="s"))
    communicators.submit(complete(owner="t"))
    sends = communicators.end_owner("s", Refusal(Reason.SESSION_EXPIRED, "over"))
    assert ops(sends) == [(0, "fail"), (1, "fail")]
    communicators.on_message(location(0), message("id", unique_id="u"))
    communicators.on_message(location(0), message("joined"))
    assert len(communicators.on_message(location(1), message("joined"))) == 2
    communicators.end_owner("t", Refusal(Reason.SESSION_EXPIRED, "over"))
    (comm,) = communicators
    assert not comm.in_flight and not comm.users and not comm.queue


@given(
    st.integers(-1, 3),
    st.sampled_from(["id", "joined", "join_failed", "failed", "progress", "?"]),
    st.sampled_from(["nonce-1", "nonce-2", "", 1, None]),
)
def test_stray_messages_do_no_harm(device: int, op: str, comm: object) -> None:
    body = {"op": op, "comm": comm, "unique_id": "x", "done": 3}
    assert new_communicators().on_message(location(device), body) == []
    communicators = ready(4, 5)
    assert communicators.on_message(location(device), body) == []
    assert ops(communicators.submit(complete(4, 5, sequence=2))) == [(4, "go"), (5, "go")]


def test_names_of_communicators_differ_between_daemons() -> None:
    names = {Communicators(FlightRecorder(), CollectiveOrder()).submit(complete())[0].body["comm"] for _ in range(20)}
    assert len(names) == 20 and key(0).group == ""
