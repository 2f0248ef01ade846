"""Queue of jobs that wait for an idle device: order, late loads, loads to be logged, and the start of the wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.idle_queue import LOG_AFTER_S, MAX_BACKGROUND, IdleQueue


def test_order_and_start_of_the_first_urgent_wait() -> None:
    queue: IdleQueue[str] = IdleQueue()
    assert queue.first is None and queue.urgent_since is None and not queue
    patient = queue.add("unload", 1.0, urgent=False)
    assert queue.urgent_since is None and queue.limited == 0
    urgent = queue.add("free", 2.0, urgent=True)
    load = queue.add("load", 3.0, urgent=False, limited=True)
    assert queue.first is patient and queue.urgent_since == 2.0 and (len(queue), queue.limited) == (3, 1)
    assert queue.drop(urgent) and queue.urgent_since == 3.0
    assert queue.drop(load) and queue.urgent_since is None and queue.limited == 0
    assert queue.drop(patient) and not queue.drop(patient) and queue.first is None


def test_many_patient_waits_become_urgent() -> None:
    queue: IdleQueue[int] = IdleQueue()
    waiters = [queue.add(number, float(number), urgent=False) for number in range(MAX_BACKGROUND + 3)]
    assert queue.urgent_since == MAX_BACKGROUND, "since one exceeded the limit"
    queue.add(-1, 1000.0, urgent=True)
    assert queue.urgent_since == MAX_BACKGROUND
    for waiter in waiters[:3]:
        queue.drop(waiter)
    assert queue.urgent_since == 1000.0


def test_only_loads_are_overdue() -> None:
    queue: IdleQueue[str] = IdleQueue()
    queue.add("free", 0.0, urgent=True)
    load = queue.add("load", 1.0, urgent=True, limited=True)
    late = queue.add("late", 5.0, urgent=True, limited=True)
    assert queue.expired(10.9, 10.0) == [] and queue.expired(11.0, 10.0) == [load]
    assert queue.expired(15.0, 10.0) == [load, late] and queue.expired(1e9, 0.0) == []
    assert queue.longest(15.0) == 14.0
    queue.drop(load)
    queue.drop(late)
    assert queue.expired(1e9, 10.0) == [] and queue.longest(15.0) == 0.0


def test_each_overdue_wait_is_reported_once() -> None:
    queue: IdleQueue[str] = IdleQueue()
    first = queue.add("first", 0.0, urgent=True, limited=True)
    second = queue.add("second", 0.5, urgent=True, limited=True)
    queue.add("free", 0.0, urgent=True)
    assert queue.unlogged(LOG_AFTER_S - 0.1) == []
    assert queue.unlogged(LOG_AFTER_S) == [first] and queue.unlogged(LOG_AFTER_S) == []
    assert queue.unlogged(LOG_AFTER_S + 1) == [second] and queue.unlogged(1e9) == []


def test_time_of_the_next_check() -> None:
    queue: IdleQueue[str] = IdleQueue()
    queue.add("free", 0.0, urgent=True)
    assert queue.wake(5.0, 10.0) is None
    queue.add("load", 1.0, urgent=True, limited=True)
    assert queue.wake(1.0, 10.0) == LOG_AFTER_S and queue.wake(1.0, 0.5) == 0.5
    queue.unlogged(1.0 + LOG_AFTER_S)
    assert queue.wake(3.0, 10.0) == 8.0 and queue.wake(99.0, 10.0) == 0.0 and queue.wake(3.0, 0.0) is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 50), st.floats(0, 200))
def test_sleeping_until_the_next_check_misses_no_overdue_wait(gaps: list[float], limit: float, later: float) -> None:
    queue: IdleQueue[int] = IdleQueue()
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        queue.add(number, now, urgent=True, limited=True)
    now += later
    for waiter in queue.expired(now, limit):
        queue.drop(waiter)
    queue.unlogged(now)
    delay = queue.wake(now, limit)
    assert (delay is None) == (queue.limited == 0)
    if delay is not None:
        before, after = now + delay * 0.99 - 1e-6, now + delay + 1e-6
        assert before < now or not queue.expired(before, limit)
        assert queue.expired(after, limit) or queue.unlogged(after)


@pytest.mark.parametrize("urgent", [True, False])
def test_loads_are_always_urgent(urgent: bool) -> None:
    queue: IdleQueue[str] = IdleQueue()
    queue.add("load", 4.0, urgent=urgent, limited=True)
    assert queue.urgent_since == 4.0
