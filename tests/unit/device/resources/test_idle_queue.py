"""Queue of jobs that wait for an idle device: order, late loads, loads to be logged, and the start of the wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.idle_queue import PATIENT_MOST, TELL_S, IdleQueue


def test_in_order_and_since_the_first_that_matters() -> None:
    line: IdleQueue[str] = IdleQueue()
    assert line.first is None and line.since is None and not line
    patient = line.add("unload", 1.0, urgent=False)
    assert line.since is None and line.limited == 0
    urgent = line.add("free", 2.0, urgent=True)
    load = line.add("load", 3.0, urgent=False, limited=True)
    assert line.first is patient and line.since == 2.0 and (len(line), line.limited) == (3, 1)
    assert line.drop(urgent) and line.since == 3.0
    assert line.drop(load) and line.since is None and line.limited == 0
    assert line.drop(patient) and not line.drop(patient) and line.first is None


def test_many_patient_waits_become_urgent() -> None:
    line: IdleQueue[int] = IdleQueue()
    places = [line.add(number, float(number), urgent=False) for number in range(PATIENT_MOST + 3)]
    assert line.since == PATIENT_MOST, "since there was one too many"
    line.add(-1, 1000.0, urgent=True)
    assert line.since == PATIENT_MOST
    for place in places[:3]:
        line.drop(place)
    assert line.since == 1000.0


def test_only_loads_are_overdue() -> None:
    line: IdleQueue[str] = IdleQueue()
    line.add("free", 0.0, urgent=True)
    load = line.add("load", 1.0, urgent=True, limited=True)
    late = line.add("late", 5.0, urgent=True, limited=True)
    assert line.expired(10.9, 10.0) == [] and line.expired(11.0, 10.0) == [load]
    assert line.expired(15.0, 10.0) == [load, late] and line.expired(1e9, 0.0) == []
    assert line.longest(15.0) == 14.0
    line.drop(load)
    line.drop(late)
    assert line.expired(1e9, 10.0) == [] and line.longest(15.0) == 0.0


def test_each_overdue_wait_is_reported_once() -> None:
    line: IdleQueue[str] = IdleQueue()
    first = line.add("first", 0.0, urgent=True, limited=True)
    second = line.add("second", 0.5, urgent=True, limited=True)
    line.add("free", 0.0, urgent=True)
    assert line.unlogged(TELL_S - 0.1) == []
    assert line.unlogged(TELL_S) == [first] and line.unlogged(TELL_S) == []
    assert line.unlogged(TELL_S + 1) == [second] and line.unlogged(1e9) == []


def test_time_of_the_next_check() -> None:
    line: IdleQueue[str] = IdleQueue()
    line.add("free", 0.0, urgent=True)
    assert line.wake(5.0, 10.0) is None
    line.add("load", 1.0, urgent=True, limited=True)
    assert line.wake(1.0, 10.0) == TELL_S and line.wake(1.0, 0.5) == 0.5
    line.unlogged(1.0 + TELL_S)
    assert line.wake(3.0, 10.0) == 8.0 and line.wake(99.0, 10.0) == 0.0 and line.wake(3.0, 0.0) is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 50), st.floats(0, 200))
def test_sleeping_until_the_next_check_misses_no_overdue_wait(gaps: list[float], limit: float, later: float) -> None:
    line: IdleQueue[int] = IdleQueue()
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        line.add(number, now, urgent=True, limited=True)
    now += later
    for place in line.expired(now, limit):
        line.drop(place)
    line.unlogged(now)
    ahead = line.wake(now, limit)
    assert (ahead is None) == (line.limited == 0)
    if ahead is not None:
        before, after = now + ahead * 0.99 - 1e-6, now + ahead + 1e-6
        assert before < now or not line.expired(before, limit)
        assert line.expired(after, limit) or line.unlogged(after)


@pytest.mark.parametrize("urgent", [True, False])
def test_loads_are_always_urgent(urgent: bool) -> None:
    line: IdleQueue[str] = IdleQueue()
    line.add("load", 4.0, urgent=urgent, limited=True)
    assert line.since == 4.0
