"""Operations that are queued after others run after them: in whichever order parts arrive, no rank receives "go" too
early."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives.coordinator import Coordinator
from hearthd.front.collectives.match import DeviceMessage, MatchKey
from hearthd.front.collectives.order import CollectiveOrder
from tests.support.front.collective_parts import key, location, ops, present_body, reason_of, refusal_in


def encode_predecessors(*keys: MatchKey) -> list[list[Any]]:
    return [[list(key.members), key.sequence] for key in keys]


class Ranks:
    """A coordinator, and device processes that join immediately and record the messages sent to them."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(30.0, nonce="n")
        self.received: list[tuple[int, str, int, tuple[int, ...]]] = []
        """Device, `op`, sequence number and members of each message, in order."""

    def present(
        self, device: int, operation: MatchKey, *predecessors: MatchKey, now: float = 0.0, **changes: Any
    ) -> list[DeviceMessage]:
        body = {**present_body(**changes), "behind": encode_predecessors(*predecessors)}
        rank = operation.members.index(device)
        return self.hear(self.coordinator.present(operation, rank, location(device), body, now))

    def withdraw(self, device: int, operation: MatchKey, refusal: Refusal) -> list[DeviceMessage]:
        rank = operation.members.index(device)
        return self.hear(self.coordinator.withdraw(operation, rank, {"status": to_text(refusal)}))

    def hear(self, sends: list[DeviceMessage]) -> list[DeviceMessage]:
        """Returns the messages about operations, and answers those about communicators."""
        about_operations: list[DeviceMessage] = []
        for send in sends:
            body = send.body
            answers = {"create_id": {"op": "id", "unique_id": "u"}, "join": {"op": "joined"}}
            if body["op"] in answers:
                answer = {**answers[body["op"]], "comm": body["comm"]}
                about_operations += self.hear(self.coordinator.on_message(send.location, answer))
            elif body["op"] in ("go", "fail"):
                self.received.append((send.location.device, body["op"], body["sequence"], tuple(body["devices"])))
                about_operations.append(send)
        return about_operations


def test_operation_queued_after_another_is_released_after_it() -> None:
    """Device 1 has C first, and X after C. If X were released first, it would block all later operations on that
    device."""
    ranks = Ranks()
    c, x, y = key(1, 2), key(0, 1), key(1, 0)
    assert ranks.present(1, c) == [] and ranks.present(1, x, c) == []
    assert ranks.present(0, x) == [], "complete, and held"
    assert ops(ranks.present(0, y) + ranks.present(1, y)) == [(1, "go"), (0, "go")]
    sends = ranks.present(2, c)
    assert [(send.body["op"], tuple(send.body["devices"])) for send in sends] == [
        ("go", (1, 2)), ("go", (1, 2)), ("go", (0, 1)), ("go", (0, 1)),
    ]  # fmt: skip


def test_operation_queued_after_a_failed_one_is_released() -> None:
    ranks = Ranks()
    c, x = key(1, 2), key(0, 1)
    ranks.present(1, c, timeout=3)
    ranks.present(1, x, c)
    ranks.present(0, x)
    sends = ranks.hear(ranks.coordinator.expire(3.0))
    assert ops(sends) == [(1, "fail"), (0, "go"), (1, "go")]


def test_held_operation_fails_at_its_own_timeout() -> None:
    ranks = Ranks()
    c, x = key(1, 2), key(0, 1)
    ranks.present(1, c, timeout=9)
    ranks.present(1, x, c, timeout=2)
    ranks.present(0, x)
    first, second = ranks.hear(ranks.coordinator.expire(2.0))
    assert {first.location.device, second.location.device} == {0, 1}
    refusal = refusal_in(first)
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and "behind operation 1 of group [1, 2]" in refusal.message
    assert ops(ranks.present(2, c)) == [(1, "go"), (2, "go")]


def test_crossed_operations_fail_immediately_on_all_ranks() -> None:
    ranks = Ranks()
    a, b = key(0, 1, sequence=1), key(0, 1, sequence=2)
    ranks.present(0, a)
    ranks.present(0, b, a)
    ranks.present(1, b)
    sends = ranks.present(1, a, b)
    assert sorted(ops(sends)) == [(0, "go"), (1, "go"), (0, "fail"), (0, "fail"), (1, "fail"), (1, "fail")][2:]
    refusal = refusal_in(sends[0])
    assert refusal.reason == Reason.COLLECTIVE_MISMATCH and refusal.details["field"] == "order"
    assert "in the opposite order" in refusal.message
    late = key(0, 1, sequence=3)
    assert ranks.present(0, late) == []
    assert ops(ranks.present(1, late)) == [(0, "go"), (1, "go")]


@pytest.mark.parametrize("nonsense", [7, [1], [[1]], [[[0], "x"]], [[["a"], 1]], "ab"], ids=str)
def test_invalid_lists_of_operations_are_refused(nonsense: object) -> None:
    coordinator = Coordinator(30.0, nonce="n")
    with pytest.raises((TypeError, ValueError)):
        coordinator.present(key(0, 1), 0, location(0), {**present_body(), "behind": nonsense}, 0.0)
    assert len(coordinator.matcher) == 0


# ---- ranks that do not take part ----

REFUSED = Refusal(Reason.OUT_OF_BOUNDS, "bytes [0..68) of a buffer of 64")


def test_withdrawal_of_a_rank_fails_the_others_whenever_they_present() -> None:
    ranks = Ranks()
    ranks.present(0, key(0, 1, 2))
    (failure,) = ranks.withdraw(1, key(0, 1, 2), REFUSED)
    refusal = refusal_in(failure)
    assert failure.location.device == 0 and refusal.reason == Reason.COMMUNICATOR_FAILED
    assert "device 1 cannot take part in it: bytes [0..68)" in refusal.message
    assert refusal.details["failed"] == "1" and refusal.details["cause"] == "OUT_OF_BOUNDS"
    assert reason_of(ranks.present(2, key(0, 1, 2))[0].body) == Reason.COMMUNICATOR_FAILED
    assert ranks.withdraw(1, key(0, 1, sequence=9), REFUSED) == []
    assert reason_of(ranks.present(0, key(0, 1, sequence=9))[0].body) == Reason.COMMUNICATOR_FAILED


def test_withdrawing_rank_gets_no_failure_message() -> None:
    ranks = Ranks()
    ranks.present(0, key(0, 1))
    assert ranks.withdraw(0, key(0, 1), REFUSED) == []
    assert reason_of(ranks.present(1, key(0, 1))[0].body) == Reason.COMMUNICATOR_FAILED


def test_rank_that_presents_after_its_withdrawal() -> None:
    """A sequence number that was refused can be used again if no other rank has received the refusal."""
    ranks = Ranks()
    assert ranks.withdraw(0, key(0, 1), REFUSED) == []
    assert ranks.present(0, key(0, 1)) == []
    assert ops(ranks.present(1, key(0, 1))) == [(0, "go"), (1, "go")]
    assert ranks.withdraw(0, key(0, 1, sequence=2), REFUSED) == []
    assert ops(ranks.present(1, key(0, 1, sequence=2))) == [(1, "fail")]
    assert ops(ranks.present(0, key(0, 1, sequence=2))) == [(0, "fail")]


def test_a_rank_that_withdraws_while_the_communicator_is_made() -> None:
    coordinator = Coordinator(30.0, nonce="n")
    for device in (0, 1):
        coordinator.present(key(0, 1), device, location(device), present_body(), 0.0)
    sends = coordinator.withdraw(key(0, 1), 0, {"status": to_text(REFUSED)})
    assert ops(sends) == [(1, "fail")]


@pytest.mark.parametrize("status", ["%%", "AAAA", None])
def test_withdrawal_without_a_reason_is_refused(status: object) -> None:
    with pytest.raises(ValueError):
        Coordinator(30.0, nonce="n").withdraw(key(0, 1), 0, {"status": status})


# ---- random programs ----

DEVICES = 3
GROUPS = ((0, 1), (1, 0), (1, 2), (0, 1, 2), (2, 0))
operations = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(0, 1)), min_size=1, max_size=12)


@given(operations, st.randoms(use_true_random=False))
def test_all_operations_can_be_launched_in_the_order_of_the_messages(
    program: list[tuple[Any, int]], random: Any
) -> None:
    """Every device has two separate streams, and presents a sequence of operations as far as it was submitted on that
    device."""
    ranks = Ranks()
    operations = [(key(*members, sequence=number), stream) for number, (members, stream) in enumerate(program, 1)]
    remaining = {device: [row for row in operations if device in row[0].members] for device in range(DEVICES)}
    predecessor_of: dict[tuple[int, MatchKey], MatchKey] = {}
    for device, of_device in remaining.items():
        last: dict[int, MatchKey] = {}
        for operation, stream in of_device:
            if stream in last:
                predecessor_of[device, operation] = last[stream]
            last[stream] = operation
    launched: set[tuple[int, MatchKey]] = set()
    while any(remaining.values()):
        device = random.choice([device for device, of_device in remaining.items() if of_device])
        # one of the streams may be further than the other, but each is in order
        stream = random.choice(sorted({stream for _, stream in remaining[device]}))
        index = next(index for index, row in enumerate(remaining[device]) if row[1] == stream)
        operation, _ = remaining[device].pop(index)
        previous = predecessor_of.get((device, operation))
        predecessors = [previous] if previous is not None and (device, previous) not in launched else []
        for send in ranks.present(device, operation, *predecessors):
            assert send.body["op"] == "go"
            operation_key = key(*send.body["devices"], sequence=send.body["sequence"])
            receiver = send.location.device
            blocker = predecessor_of.get((receiver, operation_key))
            assert blocker is None or (receiver, blocker) in launched, "the operation could not start on that rank"
            launched.add((receiver, operation_key))
    assert len(launched) == sum(len(operation.members) for operation, _ in operations), "no operation remains"
    assert len(ranks.coordinator.matcher) == 0 and not len(ranks.coordinator.matcher.order)


@given(st.lists(st.tuples(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=3)), max_size=30))
def test_order_keeps_no_state_of_closed_operations(steps: list[tuple[int, set[int]]]) -> None:
    order: Any = CollectiveOrder()  # numbers serve as the keys of operations
    for operation, predecessors in steps:
        order.open(operation)
        if not order.is_held(operation) and order.hold(operation, predecessors) and order.find_cycle(operation):
            for member in order.find_cycle(operation):
                order.close(member)
    for operation in range(8):
        order.close(operation)
    assert len(order) == 0 and not any(map(order.is_held, range(8)))
