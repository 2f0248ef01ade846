"""Times at which freed memory is returned to the system."""

from __future__ import annotations

import itertools

from hearthd.front.daemon.heap_trim import MAX_INTERVAL_S, MIN_GROWTH_BYTES, MIN_INTERVAL_S, SETTLE_S, HeapTrimming

START = 100.0 * (1 << 20)


def test_once_after_each_time_that_there_were_sessions() -> None:
    trimming = HeapTrimming()
    seen = [(0, 0.0), (0, 9.0), (3, 10.0), (0, 11.0), (0, 15.9), (0, 16.0), (0, 17.0), (0, 30.0), (1, 31.0), (0, 32.0)]
    due = [now for sessions, now in seen if trimming.is_due(sessions, START, now)]
    assert due == [16.0]
    assert not trimming.is_due(2, START, 36.0) and not trimming.is_due(0, START, 37.0), (
        "a new session restarts the wait"
    )
    assert not trimming.is_due(0, START, 41.9) and trimming.is_due(0, START, 42.0)


def test_after_a_burst_while_a_session_stays() -> None:
    trimming = HeapTrimming()
    assert not trimming.is_due(1, START, 0.0)
    assert not trimming.is_due(1, START + MIN_GROWTH_BYTES, 1.0), "it may grow further"
    assert not trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 2.0)
    assert not trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 2.0 + SETTLE_S - 0.1)
    assert trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 2.0 + SETTLE_S)


def test_small_growth_costs_no_trimming() -> None:
    trimming = HeapTrimming()
    trimming.is_due(1, START, 0.0)
    assert not any(trimming.is_due(1, START + MIN_GROWTH_BYTES - 1, float(now)) for now in range(1, 100))
    assert not trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 100.0), "it has grown too recently"
    assert trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 100.0 + SETTLE_S)


def test_trims_that_fail_for_memory_in_use_are_retried_with_growing_intervals() -> None:
    trimming = HeapTrimming()
    trimming.is_due(1, START, 0.0)
    trimmed = []
    for now in range(1, 1000):
        if trimming.is_due(1, START + MIN_GROWTH_BYTES, float(now)):
            trimming.record_trim(START + MIN_GROWTH_BYTES, float(now))  # all of it is in use
            trimmed.append(now)
    intervals = [later - earlier for earlier, later in itertools.pairwise(trimmed)]
    assert intervals[:4] == [10, 20, 40, 60], "the interval doubles"
    assert set(intervals[4:]) == {MAX_INTERVAL_S}


def test_memory_in_use_at_a_trim_is_returned_after_its_release() -> None:
    trimming = HeapTrimming()
    trimming.is_due(1, START, 0.0)
    held, left = START + 3 * MIN_GROWTH_BYTES, []
    for now in range(1, 30):
        if trimming.is_due(1, held, float(now)):
            held = START if now >= 10 else held  # the memory is freed at 10 s, so that trimming returns it
            trimming.record_trim(held, float(now))
            left.append((now, held))
    assert left == [(4, START + 3 * MIN_GROWTH_BYTES), (14, START)]


def test_another_burst_does_not_wait_for_a_long_interval() -> None:
    trimming = HeapTrimming()
    trimming.is_due(1, START, 0.0)
    for now in range(1, 100):
        if trimming.is_due(1, START + MIN_GROWTH_BYTES, float(now)):
            trimming.record_trim(START + MIN_GROWTH_BYTES, float(now))
    assert not trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 100.0)
    assert trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, 100.0 + SETTLE_S)


def test_slow_growth_is_not_a_lasting_burst() -> None:
    trimming = HeapTrimming()
    trimming.is_due(1, START, 0.0)
    due = [now for now in range(1, 60) if trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES + now * 4096, float(now))]
    assert due[0] == 1 + SETTLE_S


def test_steady_transfers_are_trimmed_once_in_an_interval() -> None:
    trimming = HeapTrimming()
    trimming.is_due(1, START, 0.0)
    trimmed = []
    for now in range(1, 200):
        if trimming.is_due(1, START + 2 * MIN_GROWTH_BYTES, float(now)):
            trimming.record_trim(START, float(now))
            trimmed.append(now)
    assert len(trimmed) > 2
    assert all(later - earlier >= MIN_INTERVAL_S for earlier, later in itertools.pairwise(trimmed))
