"""Compiles take turns by session, and many compiles of one session do not delay another session's."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.compiler.queue import CompileQueue


def drain(queue: CompileQueue[str]) -> list[str]:
    taken = []
    while (entry := queue.next_item()) is not None:
        taken.append(entry[1])
    return taken


def test_owners_take_turns() -> None:
    queue: CompileQueue[str] = CompileQueue(6)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(item[0], item)
    assert drain(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert len(queue) == 0


def test_tenant_without_a_running_compile_goes_first() -> None:
    queue: CompileQueue[str] = CompileQueue(2)
    for number in range(5):
        queue.put("flood", f"flood{number}")
    assert drain(queue) == ["flood0", "flood1"]
    queue.put("b", "b1")
    queue.put("b", "b2")
    assert drain(queue) == ["b1"], "one more than the slots, and no second one"
    queue.put("c", "c1")
    queue.put("d", "d1")
    assert drain(queue) == ["c1"], "at most twice the number of slots"
    for owner in ("flood", "b", "c"):
        queue.done(owner)
    assert drain(queue) == ["flood2", "b2", "d1"]


def test_waiting_compile_can_be_removed() -> None:
    queue: CompileQueue[str] = CompileQueue(1)
    for item in ("a1", "a2", "b1"):
        queue.put(item[0], item)
    assert drain(queue) == ["a1", "b1"]
    assert queue.drop("a2") and not queue.drop("a2") and not queue.drop("a1")
    queue.done("a")
    assert drain(queue) == [] and len(queue) == 0


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
def test_bounds_hold_and_nothing_is_lost(slots: int, steps: list[tuple[int, bool]]) -> None:
    queue: CompileQueue[int] = CompileQueue(slots)
    put, taken, running = 0, [], []
    for owner, add in steps:
        if add:
            queue.put(owner, put)
            put += 1
        elif running:
            queue.done(running.pop(0))
        while (entry := queue.next_item()) is not None:
            running.append(entry[0])
            taken.append(entry[1])
            beyond = len(running) - slots
            assert len(running) <= 2 * slots
            assert beyond <= 0 or Counter(running)[entry[0]] == 1
        waiting = put - len(taken)
        assert len(queue) == waiting
        assert not waiting or len(running) >= slots
    while running:
        queue.done(running.pop(0))
        while (entry := queue.next_item()) is not None:
            running.append(entry[0])
            taken.append(entry[1])
    assert sorted(taken) == list(range(put))
