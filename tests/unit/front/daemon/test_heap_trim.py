"""When freed memory is given back."""

from __future__ import annotations

import itertools

from hearthd.front.daemon.heap_trim import GROWTH, INTERVAL, STILL, HeapTrimming

START = 100.0 * (1 << 20)


def test_once_after_each_time_that_there_were_sessions() -> None:
    trimming = HeapTrimming(quiet=5.0)
    seen = [(0, 0.0), (0, 9.0), (3, 10.0), (0, 11.0), (0, 15.9), (0, 16.0), (0, 17.0), (0, 30.0), (1, 31.0), (0, 32.0)]
    due = [now for sessions, now in seen if trimming.due(sessions, START, now)]
    assert due == [16.0]
    assert not trimming.due(2, START, 36.0) and not trimming.due(0, START, 37.0), "a new session begins the wait again"
    assert not trimming.due(0, START, 41.9) and trimming.due(0, START, 42.0)


def test_after_a_burst_while_a_session_stays() -> None:
    trimming = HeapTrimming()
    assert not trimming.due(1, START, 0.0)
    assert not trimming.due(1, START + GROWTH, 1.0), "it may grow further"
    assert not trimming.due(1, START + 2 * GROWTH, 2.0)
    assert not trimming.due(1, START + 2 * GROWTH, 2.0 + STILL - 0.1)
    assert trimming.due(1, START + 2 * GROWTH, 2.0 + STILL)


def test_growth_that_is_small_or_stays_costs_no_trimming() -> None:
    trimming = HeapTrimming()
    trimming.due(1, START, 0.0)
    assert not any(trimming.due(1, START + GROWTH - 1, float(now)) for now in range(1, 100))
    assert trimming.due(1, START + GROWTH, 100.0 + STILL) is False  # it has just grown
    assert trimming.due(1, START + GROWTH, 100.0 + 2 * STILL)
    trimming.done(START + GROWTH, 110.0)  # all of it is in use
    assert not any(trimming.due(1, START + GROWTH, 110.0 + now) for now in range(100))


def test_steady_transfers_are_trimmed_once_in_an_interval() -> None:
    trimming = HeapTrimming()
    trimming.due(1, START, 0.0)
    trimmed = []
    for now in range(1, 200):
        if trimming.due(1, START + 2 * GROWTH, float(now)):
            trimming.done(START, float(now))
            trimmed.append(now)
    assert len(trimmed) > 2
    assert all(later - earlier >= INTERVAL for earlier, later in itertools.pairwise(trimmed))
