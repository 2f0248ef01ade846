"""Presentations that are sent immediately, and those that are held to be sent together with others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.collectives.outgoing import HOLD_S, MAX_HELD, UNANSWERED, OutgoingOperations
from hearthd.device.collectives.pending import OperationKey, PendingCollective

SAME = [{"kind": "all_reduce"}]


class Desk:
    """Presents operations of devices (0, 1), each waiting for the one before it, and answers some."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[dict[str, Any]] = []
        self.answered = 0
        self.added = 0
        self.outgoing = OutgoingOperations(self.sent.append, lambda key: key.sequence > self.answered, lambda: self.now)

    def add(self, count: int = 1, signature: Any = SAME, waits: bool = True, **named: Any) -> None:
        for _ in range(count):
            self.added += 1
            pending = PendingCollective(None, None, self.key(**named), [], 30.0)  # type: ignore[arg-type]
            if waits and self.added > 1:
                pending.predecessors = [self.key(sequence=self.added - 1)]
            self.outgoing.add(pending, signature)

    def key(
        self, channel: int = 1, group: str = "", devices: tuple[int, ...] = (0, 1), sequence: int = 0
    ) -> OperationKey:
        return OperationKey(channel, group, devices, sequence or self.added)

    def settle(self) -> list[int]:
        """Returns the number of operations in each message sent since the last call."""
        before = len(self.sent)
        self.outgoing.settle()
        return [message.get("count", 1) for message in self.sent[before:]]


def started(messages: int = UNANSWERED) -> Desk:
    """Returns a desk that has sent `messages` unanswered messages of one operation each."""
    desk = Desk()
    for _ in range(messages):
        desk.add()
        assert desk.settle() == [1]
    return desk


def test_single_operation_is_sent_immediately() -> None:
    desk = started(1)
    desk.answered = 1
    desk.add()
    assert desk.settle() == [1]
    assert desk.outgoing.max_sleep(None) is None


def test_operations_gathered_during_two_unanswered_messages_are_sent_as_one() -> None:
    desk = started()
    for _ in range(5):
        desk.add(2)
        assert desk.settle() == []
    assert len(desk.outgoing) == 10
    desk.answered = 1
    assert desk.settle() == [10]
    assert desk.sent[-1]["sequence"] == 3 and desk.sent[-1]["behind"] == [[(0, 1), 2]]
    desk.add(3)
    assert desk.settle() == [], "the second and the third message have no answer yet"
    desk.answered = 2
    assert desk.settle() == [3]


def test_operations_are_kept_only_briefly() -> None:
    desk = started()
    desk.add()
    assert desk.settle() == []
    assert desk.outgoing.max_sleep(None) == pytest.approx(HOLD_S)
    desk.now += HOLD_S / 2
    desk.add()
    assert desk.settle() == []
    desk.now += HOLD_S
    assert desk.outgoing.max_sleep(None) == 0.0
    assert desk.settle() == [2]
    assert desk.outgoing.max_sleep(None) is None


def test_number_of_kept_messages_is_bounded() -> None:
    desk = started()
    desk.add(MAX_HELD - 1)
    assert desk.settle() == []
    desk.add()
    assert desk.settle() == [MAX_HELD]


def test_independent_operation_is_sent_immediately() -> None:
    """Checks that an operation that does not wait for unanswered ones is sent: holding it could make ranks wait for
    each other in a cycle."""
    desk = started()
    desk.add(waits=False)
    assert desk.settle() == [1]
    desk = started()
    desk.add()
    desk.add(waits=False)
    assert desk.settle() != []


def test_operations_of_other_devices_or_sessions_are_sent_immediately() -> None:
    for key_fields in ({"devices": (0, 2)}, {"channel": 2}):
        desk = started()
        desk.add(**key_fields)  # waits for an operation of the other series
        assert desk.settle() == [1]
        desk = started()
        desk.add()
        desk.add(**key_fields)
        assert desk.settle() == [1, 1]


def test_different_operations_are_kept_together_and_sent_separately() -> None:
    desk = started()
    desk.add(2)
    desk.add(2, [{"kind": "broadcast"}])
    assert desk.settle() == []
    desk.answered = 1
    assert desk.settle() == [2, 2]
    assert desk.sent[-1]["behind"] == [[(0, 1), 4]]


def test_flush_sends_kept_operations() -> None:
    desk = started()
    desk.add(2)
    assert desk.outgoing.flush() and not desk.outgoing.flush()
    assert desk.sent[-1]["count"] == 2


@given(st.lists(st.sampled_from(["add", "other", "alone", "answer", "settle", "flush", "time"]), max_size=60))
def test_all_are_sent_once_and_in_order(actions: list[str]) -> None:
    desk = Desk()
    for step in actions:
        if step == "add":
            desk.add()
        elif step == "other":
            desk.add(signature=[{"kind": "broadcast"}])
        elif step == "alone":
            desk.add(waits=False)
        elif step == "answer":
            sent_count = sum(message.get("count", 1) for message in desk.sent)
            desk.answered = min(desk.answered + 1, sent_count)
        elif step == "time":
            desk.now += HOLD_S
        elif step == "flush":
            desk.outgoing.flush()
        else:
            desk.outgoing.settle()
    unsent = desk.added - sum(message.get("count", 1) for message in desk.sent)
    assert unsent == len(desk.outgoing)
    desk.now += HOLD_S
    desk.outgoing.settle()
    sequences = [message["sequence"] + step for message in desk.sent for step in range(message.get("count", 1))]
    assert sequences == list(range(1, desk.added + 1))
