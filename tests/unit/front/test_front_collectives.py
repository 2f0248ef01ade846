"""The matcher and the communicators: what comes out for what goes in, for any order."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import status_pb2
from hearthd.front.collectives import MAX_FAILURES, Key, Match, Matcher, Send
from hearthd.front.communicators import Communicators

SIGNATURE = {"kind": "all_reduce", "count": 8, "dtype": "float32", "reduce": "sum"}


def part(devices: list[int], sequence: int = 1, channel: int = 1, timeout: float = 5, **changes: Any) -> dict[str, Any]:
    return {
        "op": "present", "channel": channel, "devices": devices, "sequence": sequence,
        "signature": {**SIGNATURE, **changes}, "timeout": timeout,
    }  # fmt: skip


def refusal_in(send: Send) -> Refusal:
    assert send.body["op"] == "fail"
    return from_status(status_pb2.Status.FromString(base64.b64decode(send.body["status"])))


def test_complete_when_all_have_presented() -> None:
    matcher = Matcher(range(4))
    assert matcher.present("s", 2, part([0, 2], channel=22), 0.0) == ([], None)
    assert matcher.present("s", 0, part([2, 0], sequence=2, channel=9), 0.0) == ([], None)
    assert matcher.present("t", 0, part([0, 2], channel=9), 0.0) == ([], None)
    sends, match = matcher.present("s", 0, part([0, 2], channel=7), 0.0)
    assert sends == [] and match is not None
    assert match.key == Key("s", (0, 2), 1)
    assert match.channels == {0: 7, 2: 22}
    assert len(matcher) == 2


def test_a_group_of_one() -> None:
    sends, match = Matcher([0]).present("s", 0, part([0]), 0.0)
    assert sends == [] and match is not None


@pytest.mark.parametrize(
    ("field", "value"), [("count", 9), ("dtype", "int32"), ("reduce", "max"), ("kind", "broadcast"), ("reduce", None)]
)
def test_a_mismatch_names_the_odd_rank_and_both_values(field: str, value: object) -> None:
    matcher = Matcher(range(4))
    matcher.present("s", 0, part([0, 1, 3], channel=10), 0.0)
    matcher.present("s", 1, part([0, 1, 3], channel=11, **{field: value}), 0.0)
    sends, match = matcher.present("s", 3, part([0, 1, 3], channel=13), 0.0)
    assert match is None
    assert [(send.device, send.body["channel"]) for send in sends] == [(0, 10), (1, 11), (3, 13)]
    for send in sends:
        refusal = refusal_in(send)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH
        assert refusal.details["odd_rank"] == "1" and refusal.details["field"] == field
        assert refusal.details["requested"] == str(value) and refusal.details["expected"] == str(SIGNATURE[field])
        assert repr(value) in refusal.message and repr(SIGNATURE[field]) in refusal.message
    assert len(matcher) == 0


def test_missing_ranks_at_the_timeout() -> None:
    matcher = Matcher(range(4), timeout=30)
    matcher.present("s", 0, part([0, 1, 2], timeout=5), 100.0)
    matcher.present("s", 2, part([0, 1, 2], timeout=2), 101.0)
    assert matcher.deadline == 103.0
    assert matcher.expire(102.9) == []
    sends = matcher.expire(103.0)
    assert [send.device for send in sends] == [0, 2]
    refusal = refusal_in(sends[0])
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT
    assert refusal.details["missing"] == "1" and refusal.details["presented"] == "0, 2"
    late, match = matcher.present("s", 1, part([0, 1, 2]), 200.0)
    assert match is None and refusal_in(late[0]).reason == Reason.COLLECTIVE_TIMEOUT
    assert matcher.deadline is None


def test_the_default_timeout() -> None:
    matcher = Matcher(range(2), timeout=30)
    matcher.present("s", 0, part([0, 1], timeout=0), 100.0)
    assert matcher.deadline == 130.0


@pytest.mark.parametrize(
    ("devices", "reason"),
    [([0, 7], Reason.DEVICE_NOT_FOUND), ([0, 0], Reason.INVALID_ARGUMENT), ([1], Reason.INVALID_ARGUMENT)],
)
def test_impossible_groups(devices: list[int], reason: Reason) -> None:
    matcher = Matcher(range(2))
    sends, match = matcher.present("s", 0, part(devices), 0.0)
    assert match is None and refusal_in(sends[0]).reason == reason
    assert len(matcher) == 0


def test_twice_the_same_rank() -> None:
    matcher = Matcher(range(2))
    matcher.present("s", 0, part([0, 1]), 0.0)
    sends, _ = matcher.present("s", 0, part([0, 1]), 0.0)
    assert refusal_in(sends[0]).reason == Reason.COLLECTIVE_MISMATCH


def test_a_lost_device_fails_what_waits_for_it() -> None:
    matcher = Matcher(range(3))
    matcher.present("s", 0, part([0, 1]), 0.0)
    matcher.present("s", 0, part([0, 2]), 0.0)
    matcher.present("s", 1, part([1, 2]), 0.0)
    sends = matcher.device_lost(1, "it was killed by SIGSEGV")
    assert [send.device for send in sends] == [0]  # 1 itself is gone
    assert refusal_in(sends[0]).reason == Reason.COMMUNICATOR_FAILED
    assert "SIGSEGV" in refusal_in(sends[0]).message
    assert len(matcher) == 1
    late, _ = matcher.present("s", 2, part([1, 2]), 1.0)
    assert refusal_in(late[0]).reason == Reason.COMMUNICATOR_FAILED


def test_a_closed_session_is_forgotten() -> None:
    matcher = Matcher(range(2))
    matcher.present("s", 0, part([0, 1]), 0.0)
    matcher.present("t", 0, part([0, 1]), 0.0)
    assert [send.device for send in matcher.session_closed("s")] == [0]
    assert len(matcher) == 1 and not matcher._failures


def test_failures_are_bounded() -> None:
    matcher = Matcher(range(2))
    for sequence in range(MAX_FAILURES + 50):
        matcher.present("s", 0, part([0, 1], sequence=sequence, timeout=1), 0.0)
        matcher.expire(2.0)
    assert len(matcher._failures) == MAX_FAILURES


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], set[int]]:
    """A group, an interleaving of its ranks' operations (each rank in its own order), sequences with an odd rank."""
    devices = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    count = draw(st.integers(1, 5))
    ranks = [device for device in devices for _ in range(count)]
    order = draw(st.permutations(ranks))
    seen: dict[int, int] = {}
    steps = []
    for device in order:
        seen[device] = seen.get(device, 0) + 1
        steps.append((device, seen[device]))
    odd = draw(st.sets(st.integers(1, count))) if len(devices) > 1 else set()
    return devices, steps, odd


@settings(deadline=None)
@given(schedules(), st.booleans())
def test_any_interleaving_runs_each_operation_once_in_one_order(
    schedule: tuple[list[int], list[tuple[int, int]], set[int]], eager: bool
) -> None:
    devices, steps, odd = schedule
    matcher, communicators = Matcher(range(6)), Communicators()
    told: dict[int, list[tuple[str, int]]] = {device: [] for device in devices}
    waiting: list[Send] = []
    comms: set[int] = set()

    def deliver(sends: list[Send]) -> None:
        for send in sends:
            body = send.body
            if body["op"] in ("go", "fail"):
                assert body["devices"] == sorted(devices) and body["channel"] == 10 + send.device
                told[send.device].append((body["op"], body["sequence"]))
            else:
                waiting.append(send)

    def answer() -> None:
        while waiting:
            device, body, process = waiting.pop(0)
            assert process == 100 + device
            comms.add(body["comm"])
            reply = {"op": "joined", "comm": body["comm"]}
            if body["op"] == "create_id":
                assert device == min(devices)
                reply = {"op": "id", "comm": body["comm"], "unique_id": "abc"}
            else:
                assert body["unique_id"] == "abc" and body["ranks"] == len(devices)
                assert sorted(devices)[body["rank"]] == device
            deliver(communicators.message(device, reply, process))

    for device, sequence in steps:
        different = sequence in odd and device == devices[0]
        body = part(devices, sequence, channel=10 + device, **({"count": 99} if different else {}))
        sends, match = matcher.present("s", device, body, 0.0, process=100 + device)
        deliver(sends)
        if match is not None:
            deliver(communicators.submit(match))
        if eager:
            answer()
    answer()
    sequences = {sequence for _, sequence in steps}
    for device in devices:
        assert sorted(told[device], key=lambda item: item[1]) == [
            ("fail" if sequence in odd else "go", sequence) for sequence in sorted(sequences)
        ]
    runs = [[item for item in told[device] if item[0] == "go"] for device in devices]
    assert all(run == runs[0] for run in runs)
    assert len(matcher) == 0 and len(communicators) <= 1 and len(comms) <= 1


def complete(sequence: int = 1, deadline: float = 5.0, session: str = "s") -> Match:
    return Match(Key(session, (0, 1), sequence), deadline, {0: 10, 1: 11}, {0: {}, 1: {}})


def ready() -> Communicators:
    communicators = Communicators()
    communicators.submit(complete())
    communicators.message(0, {"op": "id", "comm": 1, "unique_id": "u"})
    communicators.message(0, {"op": "joined", "comm": 1})
    sends = communicators.message(1, {"op": "joined", "comm": 1})
    assert [(send.device, send.body["op"]) for send in sends] == [(0, "go"), (1, "go")]
    return communicators


def test_a_ready_communicator_is_used_again() -> None:
    communicators = ready()
    assert [send.body["op"] for send in communicators.submit(complete(2))] == ["go", "go"]
    assert communicators.deadline is None


def test_a_failed_join_fails_the_queue_and_aborts_the_others() -> None:
    communicators = Communicators()
    communicators.submit(complete())
    communicators.submit(complete(2))
    communicators.message(0, {"op": "id", "comm": 1, "unique_id": "u"})
    status = base64.b64encode(Refusal(Reason.INTERNAL, "no NCCL").to_status().SerializeToString()).decode()
    sends = communicators.message(1, {"op": "join_failed", "comm": 1, "status": status})
    assert [(send.device, send.body["op"]) for send in sends] == [
        (0, "abort"), (0, "fail"), (1, "fail"), (0, "fail"), (1, "fail"),
    ]  # fmt: skip
    assert refusal_in(sends[1]).reason == Reason.COMMUNICATOR_FAILED and "no NCCL" in refusal_in(sends[1]).message
    assert communicators.message(0, {"op": "joined", "comm": 1}) == []
    assert communicators.submit(complete(3)) == [Send(0, {"op": "create_id", "comm": 2, "ranks": 2})]


def test_a_communicator_that_is_not_made_in_time() -> None:
    communicators = Communicators()
    communicators.submit(complete(deadline=5.0))
    communicators.message(0, {"op": "id", "comm": 1, "unique_id": "u"})
    communicators.message(0, {"op": "joined", "comm": 1})
    assert communicators.deadline == 5.0 and communicators.expire(4.9) == []
    sends = communicators.expire(5.0)
    assert [send.body["op"] for send in sends] == ["abort", "abort", "fail", "fail"]
    assert refusal_in(sends[2]).reason == Reason.COLLECTIVE_TIMEOUT and refusal_in(sends[2]).details["missing"] == "1"
    assert len(communicators) == 0


def test_a_lost_device_aborts_its_communicators_on_survivors() -> None:
    communicators = ready()
    sends = communicators.device_lost(0, "boom")
    assert sends == [Send(1, {"op": "abort", "comm": 1, "reason": "device 0 was lost: boom"})]
    assert communicators.device_lost(0, "boom") == []
    assert communicators.submit(complete(2))[0].body == {"op": "create_id", "comm": 2, "ranks": 2}
    sends = communicators.device_lost(0, "boom")
    assert [(send.device, send.body["op"]) for send in sends] == [(1, "abort"), (1, "fail")]


def test_a_reported_failure_aborts_every_rank() -> None:
    sends = ready().message(1, {"op": "failed", "comm": 1, "reason": "timeout"})
    assert [(send.device, send.body["op"]) for send in sends] == [(0, "abort"), (1, "abort")]


def test_a_closed_session_leaves_the_communicator() -> None:
    communicators = Communicators()
    communicators.submit(complete(session="s"))
    communicators.submit(complete(session="t"))
    communicators.session_closed("s")
    communicators.message(0, {"op": "id", "comm": 1, "unique_id": "u"})
    communicators.message(0, {"op": "joined", "comm": 1})
    assert len(communicators.message(1, {"op": "joined", "comm": 1})) == 2


@given(st.integers(-1, 3), st.sampled_from(["id", "joined", "join_failed", "failed", "?"]), st.integers(0, 3))
def test_stray_messages_do_no_harm(device: int, op: str, comm: int) -> None:
    communicators = Communicators()
    assert communicators.message(device, {"op": op, "comm": comm, "unique_id": "x"}) == []


def on(processes: tuple[int, int], session: str, sequence: int = 1) -> Match:
    match = complete(sequence, session=session)
    match.processes = dict(enumerate(processes))
    return match


def test_processes_of_a_device_have_communicators_of_their_own() -> None:
    """Two sessions on the same devices, one of them in processes of its own."""
    communicators = Communicators()
    assert communicators.submit(on((1, 1), "s")) == [Send(0, {"op": "create_id", "comm": 1, "ranks": 2}, 1)]
    assert communicators.submit(on((2, 3), "t")) == [Send(0, {"op": "create_id", "comm": 2, "ranks": 2}, 2)]
    assert communicators.message(0, {"op": "id", "comm": 2, "unique_id": "u"}, 1) == [], "another process's"
    sends = communicators.message(0, {"op": "id", "comm": 2, "unique_id": "u"}, 2)
    assert [(send.device, send.process, send.body["op"]) for send in sends] == [(0, 2, "join"), (1, 3, "join")]
    communicators.message(0, {"op": "joined", "comm": 2}, 2)
    assert communicators.message(1, {"op": "joined", "comm": 2}, 1) == []
    sends = communicators.message(1, {"op": "joined", "comm": 2}, 3)
    assert [(send.device, send.process, send.body["op"]) for send in sends] == [(0, 2, "go"), (1, 3, "go")]
    sends = communicators.device_lost(0, "boom", 1)
    assert [(send.device, send.process) for send in sends if send.body["op"] == "abort"] == [(1, 1)]
    assert [send.body["op"] for send in communicators.submit(on((2, 3), "t", 2))] == ["go", "go"]


def test_a_lost_process_fails_the_operations_of_its_sessions_only() -> None:
    matcher = Matcher(range(2))
    matcher.present("s", 0, part([0, 1], channel=10), 0.0, process=1)
    matcher.present("t", 0, part([0, 1], channel=20), 0.0, process=2)
    sends = matcher.device_lost(1, "it was killed by SIGSEGV", {"s"})
    assert [(send.device, send.process, send.body["channel"]) for send in sends] == [(0, 1, 10)]
    assert len(matcher) == 1
    assert matcher.device_lost(0, "it was killed by SIGSEGV", {"t"}) == [], "the part that had come is gone with it"
    assert len(matcher) == 0
