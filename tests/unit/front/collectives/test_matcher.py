"""The matcher: the messages that it returns for messages of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.collectives.errors import invalid_group
from hearthd.front.collectives.flight_recorder import FlightRecorder
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, Presentation, RankLocation
from hearthd.front.collectives.matcher import MAX_FAILURES, Matcher
from hearthd.front.collectives.order import CollectiveOrder
from tests.support.front.collective_parts import SIGNATURE, key, location, ops, present_body, refusal_in


def new_matcher() -> Matcher:
    return Matcher(30.0, FlightRecorder(), CollectiveOrder())


def present(
    matcher: Matcher, group: MatchKey, device: int, body: dict[str, Any], now: float = 0.0, process: int = 0
) -> tuple[list[DeviceMessage], Match | None]:
    """Presents the part of a local device."""
    return next(matcher.present_run(group, group.members.index(device), location(device, process), body, now))


def test_complete_when_all_have_presented() -> None:
    matcher = new_matcher()
    assert present(matcher, key(0, 2), 2, present_body(22)) == ([], None)
    assert present(matcher, key(0, 2, sequence=2), 0, present_body(9)) == ([], None)
    assert present(matcher, key(0, 2, owner="t"), 0, present_body(9)) == ([], None)
    assert present(matcher, key(2, 0), 0, present_body(9)) == ([], None), "another order is another group"
    sends, match = present(matcher, key(0, 2), 0, present_body(7))
    assert sends == [] and match is not None
    assert match.key == MatchKey("s", (0, 2), 1) and match.locations == (location(0), location(2))
    assert {rank: presentation.channel for rank, presentation in match.presentations.items()} == {0: 7, 1: 22}
    assert len(matcher) == 3


def test_a_group_of_one() -> None:
    sends, match = present(new_matcher(), key(0), 0, present_body())
    assert sends == [] and match is not None


def test_rank_without_a_part_still_presents() -> None:
    matcher = new_matcher()
    send = {**SIGNATURE, "kind": "send", "peer": 1}
    recv = {**SIGNATURE, "kind": "recv", "peer": 0}
    nothing: list[Any] = []
    for device, signature in ((2, nothing), (0, [send])):
        assert present(matcher, key(0, 1, 2), device, {**present_body(), "signature": signature}) == ([], None)
    sends, match = present(matcher, key(0, 1, 2), 1, {**present_body(), "signature": [recv]})
    assert sends == [] and match is not None and match.presentations[2].operations == []


@pytest.mark.parametrize(
    ("field", "value"), [("count", 9), ("dtype", "int32"), ("reduce", "max"), ("kind", "broadcast"), ("reduce", None)]
)
def test_a_mismatch_names_the_odd_rank_and_both_values(field: str, value: object) -> None:
    matcher = new_matcher()
    group = key(3, 1, 0)
    present(matcher, group, 0, present_body(10))
    present(matcher, group, 1, present_body(11, **{field: value}))
    sends, match = present(matcher, group, 3, present_body(13))
    assert match is None
    assert [(send.location.device, send.body["channel"]) for send in sends] == [(3, 13), (1, 11), (0, 10)]
    for send in sends:
        refusal = refusal_in(send)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH
        assert refusal.details["odd_rank"] == "1" and refusal.details["field"] == field
        assert refusal.details["requested"] == str(value) and refusal.details["expected"] == str(SIGNATURE[field])
        assert repr(value) in refusal.message and repr(SIGNATURE[field]) in refusal.message
        assert "position" not in refusal.details
        assert refusal.details["recorder"].splitlines() == [refusal.details["recorder"]], "one operation, one line"
    assert len(matcher) == 0 and matcher.failed == {Reason.COLLECTIVE_MISMATCH: 1}


def test_a_mismatch_in_a_batch_names_the_position() -> None:
    matcher = new_matcher()
    first = dict(SIGNATURE)
    for device, count in ((0, 8), (1, 8), (2, 7)):
        second = {**SIGNATURE, "kind": "broadcast", "count": count}
        sends, _ = present(matcher, key(0, 1, 2), device, {**present_body(), "signature": [first, second]})
    refusal = refusal_in(sends[0])
    assert refusal.details["odd_rank"] == "2" and refusal.details["position"] == "2"
    assert "operation 2 of the batch" in refusal.message


def test_mismatched_send_and_receive_are_both_named() -> None:
    matcher = new_matcher()
    group = key(0, 3)
    present(matcher, group, 0, {**present_body(), "signature": [{**SIGNATURE, "kind": "send", "peer": 1}]})
    recv = {**SIGNATURE, "kind": "recv", "peer": 0, "count": 9}
    sends, _ = present(matcher, group, 3, {**present_body(), "signature": [recv]})
    refusal = refusal_in(sends[0])
    assert refusal.reason == Reason.COLLECTIVE_MISMATCH and refusal.details["odd_rank"] == "0, 3"
    assert refusal.details["requested"] == "8" and refusal.details["expected"] == "9"
    assert "device 0 sends 8, but device 3 receives 9 from it" in refusal.message


def test_missing_ranks_at_the_timeout() -> None:
    matcher = new_matcher()
    group = key(0, 1, 2)
    present(matcher, group, 0, present_body(timeout=5), 100.0)
    present(matcher, group, 2, present_body(timeout=2), 101.0)
    assert matcher.deadline == 103.0
    assert matcher.expire(102.9) == []
    sends = matcher.expire(103.0)
    assert [send.location.device for send in sends] == [0, 2]
    refusal = refusal_in(sends[0])
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT
    assert refusal.details["missing"] == "1" and refusal.details["presented"] == "0, 2"
    assert "1 all_reduce 8 float32 sum: presented, presented by ranks 0, 2" in refusal.details["recorder"]
    late, match = present(matcher, group, 1, present_body(), 200.0)
    assert match is None and refusal_in(late[0]).reason == Reason.COLLECTIVE_TIMEOUT
    assert matcher.deadline is None


def test_expiry_in_time_order() -> None:
    matcher = new_matcher()
    for sequence, timeout in ((1, 3), (2, 1), (3, 2), (4, 9)):
        present(matcher, key(0, 1, sequence=sequence), 0, present_body(timeout=timeout))
    assert [send.body["sequence"] for send in matcher.expire(5.0)] == [2, 3, 1]
    assert matcher.deadline == 9.0


def test_the_default_timeout() -> None:
    matcher = new_matcher()
    present(matcher, key(0, 1), 0, present_body(timeout=0), 100.0)
    assert matcher.deadline == 130.0


@pytest.mark.parametrize(
    ("devices", "reason"),
    [([0, 7], Reason.DEVICE_NOT_FOUND), ([0, 0], Reason.INVALID_ARGUMENT), ([1], Reason.INVALID_ARGUMENT)],
)
def test_impossible_groups(devices: list[int], reason: Reason) -> None:
    refusal = invalid_group(devices, 0, {0, 1})
    assert refusal is not None and refusal.reason == reason
    assert invalid_group([1, 0], 0, {0, 1}) is None


def test_a_long_list_of_devices_is_not_repeated() -> None:
    for devices in (range(100_000), [0] * 100_000):
        refusal = invalid_group(devices, 0, {0, 1})
        assert refusal is not None and len(str(refusal.details)) + len(refusal.message) < 2000


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"channel": 1},
        *({**present_body(), "signature": signature} for signature in (3, [3], None)),
        {**present_body(), "channel": "x"},
        *(present_body(timeout=timeout) for timeout in (float("nan"), -1, float("inf"))),
    ],
    ids=str,
)
def test_malformed_messages_leave_no_state(body: dict[str, Any]) -> None:
    matcher = new_matcher()
    with pytest.raises((KeyError, TypeError, ValueError)):
        present(matcher, key(0, 1), 0, body)
    with pytest.raises(ValueError, match="rank 2"):
        next(matcher.present_run(key(0, 1), 2, location(0), present_body(), 0.0))
    assert len(matcher) == 0 and matcher.deadline is None


def test_twice_the_same_rank() -> None:
    matcher = new_matcher()
    present(matcher, key(0, 1), 0, present_body())
    sends, _ = present(matcher, key(0, 1), 0, present_body())
    assert refusal_in(sends[0]).reason == Reason.COLLECTIVE_MISMATCH and "twice" in refusal_in(sends[0]).message


def test_lost_device_fails_operations_that_wait_for_it() -> None:
    matcher = new_matcher()
    present(matcher, key(0, 1), 0, present_body())
    present(matcher, key(0, 2), 0, present_body())
    present(matcher, key(1, 2), 1, present_body())
    sends = matcher.on_loss(location(1), "it was killed by SIGSEGV", {"s"})
    assert ops(sends) == [(0, "fail")]  # device 1 itself is lost
    assert refusal_in(sends[0]).reason == Reason.COMMUNICATOR_FAILED
    assert "Device 1 of group [0, 1]" in refusal_in(sends[0]).message and "SIGSEGV" in refusal_in(sends[0]).message
    assert len(matcher) == 1
    late, _ = present(matcher, key(1, 2), 2, present_body(), 1.0)
    assert refusal_in(late[0]).reason == Reason.COMMUNICATOR_FAILED


def test_a_lost_process_fails_the_operations_of_its_sessions_only() -> None:
    matcher = new_matcher()
    present(matcher, key(0, 1), 0, present_body(10), process=1)
    present(matcher, key(0, 1, owner="t"), 0, present_body(20), process=2)
    sends = matcher.on_loss(location(1, 7), "it was killed by SIGSEGV", {"s"})
    assert [(send.location, send.body["channel"]) for send in sends] == [(location(0, 1), 10)]
    assert len(matcher) == 1
    assert matcher.on_loss(location(0, 2), "it was killed by SIGSEGV", {"t"}) == [], (
        "the part that had arrived is dropped with it"
    )
    assert len(matcher) == 0


def test_a_lost_node_fails_the_operations_of_its_groups_only() -> None:
    """Each group numbers its nodes independently."""
    matcher = new_matcher()
    lost, kept = MatchKey("group:aa", (0, 1), 1), MatchKey("group:bb", (0, 1), 1)
    for group in (lost, kept):
        next(matcher.present_run(group, 1, RankLocation(1, 0, 3), present_body(), 0.0))
    local = MatchKey("group:aa", (0, 1), 2)
    next(matcher.present_run(local, 0, RankLocation(0, 0, 3), present_body(55), 0.0))
    assert matcher.on_loss(1, "its connection broke") == []
    sends = matcher.on_loss(1, "its connection broke", {"group:aa"})
    assert [(send.location, send.body["group"], send.body["devices"]) for send in sends] == [
        (RankLocation(0, 0, 3), "aa", [])
    ]
    assert "Node 1 of group aa of 2 ranks" in refusal_in(sends[0]).message
    assert len(matcher) == 1


def test_operations_of_a_cancelled_owner_fail_and_are_forgotten() -> None:
    matcher = new_matcher()
    present(matcher, key(0, 1), 0, present_body(timeout=1))
    matcher.expire(1.0)
    present(matcher, key(0, 1, sequence=2), 0, present_body())
    present(matcher, key(0, 1, owner="t"), 0, present_body())
    sends = matcher.end_owner("s", Refusal(Reason.SESSION_EXPIRED, "over"))
    assert [(send.location.device, send.body["sequence"]) for send in sends] == [(0, 2)]
    assert refusal_in(sends[0]).reason == Reason.SESSION_EXPIRED
    assert len(matcher) == 1 and not matcher.failures


def test_failures_are_bounded() -> None:
    matcher = new_matcher()
    for sequence in range(MAX_FAILURES + 50):
        present(matcher, key(0, 1, sequence=sequence), 0, present_body(timeout=1))
        matcher.expire(2.0)
    assert {owner: len(failed) for owner, failed in matcher.failures.items()} == {"s": MAX_FAILURES}


def test_old_devices_present_a_single_signature() -> None:
    assert Presentation.of(location(0), {"channel": 3, "signature": SIGNATURE}).operations == [SIGNATURE]


def test_timeout_includes_the_last_recorded_operations() -> None:
    recorder = FlightRecorder()
    matcher = Matcher(30.0, recorder, CollectiveOrder())
    for sequence in range(1, 12):
        present(matcher, key(0, 1, sequence=sequence), 0, present_body(timeout=sequence))
    lines = refusal_in(matcher.expire(1.0)[0]).details["recorder"].splitlines()
    assert [line.split()[0] for line in lines] == [str(sequence) for sequence in range(4, 12)]
