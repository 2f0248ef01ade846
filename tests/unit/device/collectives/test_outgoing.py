"""Presentations that are sent immediately, and those that are held to be sent together with others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.collectives.outgoing import KEEP_S, MOST_KEPT, UNANSWERED, OutgoingOperations
from hearthd.device.collectives.pending import OperationKey, PendingCollective

SAME = [{"kind": "all_reduce"}]


class Desk:
    """Presents operations of devices (0, 1), each waiting for the one before it, and answers some."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[dict[str, Any]] = []
        self.answered = 0
        self.added = 0
        self.rows = OutgoingOperations(self.said.append, lambda key: key.sequence > self.answered, lambda: self.now)

    def add(self, count: int = 1, signature: Any = SAME, behind: bool = True, **named: Any) -> None:
        for _ in range(count):
            self.added += 1
            pending = PendingCollective(None, None, self.key(**named), [], 30.0)  # type: ignore[arg-type]
            if behind and self.added > 1:
                pending.behind = [self.key(sequence=self.added - 1)]
            self.rows.add(pending, signature)

    def key(
        self, channel: int = 1, group: str = "", devices: tuple[int, ...] = (0, 1), sequence: int = 0
    ) -> OperationKey:
        return OperationKey(channel, group, devices, sequence or self.added)

    def settle(self) -> list[int]:
        """Returns the number of operations in each message sent since the last call."""
        before = len(self.said)
        self.rows.settle()
        return [each.get("count", 1) for each in self.said[before:]]


def started(messages: int = UNANSWERED) -> Desk:
    """Returns a desk that has sent `messages` unanswered messages of one operation each."""
    desk = Desk()
    for _ in range(messages):
        desk.add()
        assert desk.settle() == [1]
    return desk


def test_single_operation_is_sent_at_once() -> None:
    desk = started(1)
    desk.answered = 1
    desk.add()
    assert desk.settle() == [1]
    assert desk.rows.max_sleep(None) is None


def test_operations_gathered_during_two_unanswered_messages_are_sent_as_one() -> None:
    desk = started()
    for _ in range(5):
        desk.add(2)
        assert desk.settle() == []
    assert len(desk.rows) == 10
    desk.answered = 1
    assert desk.settle() == [10]
    assert desk.said[-1]["sequence"] == 3 and desk.said[-1]["behind"] == [[(0, 1), 2]]
    desk.add(3)
    assert desk.settle() == [], "the second and the third message have no answer now"
    desk.answered = 2
    assert desk.settle() == [3]


def test_operations_are_kept_only_briefly() -> None:
    desk = started()
    desk.add()
    assert desk.settle() == []
    assert desk.rows.max_sleep(None) == pytest.approx(KEEP_S)
    desk.now += KEEP_S / 2
    desk.add()
    assert desk.settle() == []
    desk.now += KEEP_S
    assert desk.rows.max_sleep(None) == 0.0
    assert desk.settle() == [2]
    assert desk.rows.max_sleep(None) is None


def test_number_of_kept_messages_is_bounded() -> None:
    desk = started()
    desk.add(MOST_KEPT - 1)
    assert desk.settle() == []
    desk.add()
    assert desk.settle() == [MOST_KEPT]


def test_independent_operation_is_sent_at_once() -> None:
    """Checks that an operation that does not wait for unanswered ones is sent: holding it could make ranks wait for
    each other in a cycle."""
    desk = started()
    desk.add(behind=False)
    assert desk.settle() == [1]
    desk = started()
    desk.add()
    desk.add(behind=False)
    assert desk.settle() != []


def test_operations_of_other_devices_or_sessions_are_sent_at_once() -> None:
    for other in ({"devices": (0, 2)}, {"channel": 2}):
        desk = started()
        desk.add(**other)  # waits for an operation of the other series
        assert desk.settle() == [1]
        desk = started()
        desk.add()
        desk.add(**other)
        assert desk.settle() == [1, 1]


def test_different_operations_are_kept_together_and_sent_separately() -> None:
    desk = started()
    desk.add(2)
    desk.add(2, [{"kind": "broadcast"}])
    assert desk.settle() == []
    desk.answered = 1
    assert desk.settle() == [2, 2]
    assert desk.said[-1]["behind"] == [[(0, 1), 4]]


def test_flush_sends_kept_operations() -> None:
    desk = started()
    desk.add(2)
    assert desk.rows.flush() and not desk.rows.flush()
    assert desk.said[-1]["count"] == 2


@given(st.lists(st.sampled_from(["add", "other", "alone", "answer", "settle", "flush", "time"]), max_size=60))
def test_all_are_sent_once_and_in_order(steps: list[str]) -> None:
    desk = Desk()
    for step in steps:
        if step == "add":
            desk.add()
        elif step == "other":
            desk.add(signature=[{"kind": "broadcast"}])
        elif step == "alone":
            desk.add(behind=False)
        elif step == "answer":
            sent = sum(each.get("count", 1) for each in desk.said)
            desk.answered = min(desk.answered + 1, sent)
        elif step == "time":
            desk.now += KEEP_S
        elif step == "flush":
            desk.rows.flush()
        else:
            desk.rows.settle()
    waits = desk.added - sum(each.get("count", 1) for each in desk.said)
    assert waits == len(desk.rows)
    desk.now += KEEP_S
    desk.rows.settle()
    sequences = [each["sequence"] + step for each in desk.said for step in range(each.get("count", 1))]
    assert sequences == list(range(1, desk.added + 1))
