"""Durations of starts and recoveries of devices."""

from __future__ import annotations

from hearthd.front.counters import HistogramCounts
from hearthd.front.supervisor.durations import ProcessDurations
from hearthd.front.supervisor.isolation import ALL_SESSIONS, WorkerKey

MINE, YOURS = WorkerKey("me"), WorkerKey("you")


def test_from_the_loss_to_the_first_process_that_serves() -> None:
    times = ProcessDurations()
    assert not times.is_measuring
    times.lost(ALL_SESSIONS, 10.0)
    times.lost(ALL_SESSIONS, 10.2)  # the replacement was lost as well
    times.served([], [ALL_SESSIONS], 10.3)
    assert times.is_measuring
    times.served([ALL_SESSIONS], [ALL_SESSIONS], 10.4)
    assert not times.is_measuring
    assert sum(times.recoveries.counts) == 1 and times.recoveries.sum_ns == 400_000_000
    times.served([ALL_SESSIONS], [ALL_SESSIONS], 99.0)
    assert sum(times.recoveries.counts) == 1


def test_recovery_time_is_measured_for_each_waiting_tenant() -> None:
    times = ProcessDurations()
    times.lost(MINE, 1.0)
    times.lost(YOURS, 1.0)
    times.served([MINE], [MINE, YOURS], 2.0)
    assert times.is_measuring and sum(times.recoveries.counts) == 1
    times.served([MINE], [MINE], 3.0)
    assert not times.is_measuring and sum(times.recoveries.counts) == 1


def test_buckets() -> None:
    buckets = HistogramCounts.up_to((0.1, 1.0))
    for seconds in (-1.0, 0.05, 0.1, 0.5, 1.0, 7.0):
        buckets.observe(seconds)
    assert buckets.counts == [3, 2, 1] and buckets.sum_ns == 8_650_000_000
