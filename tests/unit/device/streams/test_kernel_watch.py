"""The report of running kernels."""

from __future__ import annotations

from typing import Any

import pytest

from hearthd.device.streams.kernel_watch import MAX_KERNELS, KernelWatch
from hearthd.device.streams.track import LaunchProbe, PooledStream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("hearthd.device.streams.kernel_watch.time.perf_counter", lambda: now[0])
    return now


def track(*launched: tuple[int, str, str]) -> PooledStream:
    stream: Any = object()
    made = PooledStream(0, stream, 0)
    made.launched.extend(launched)
    return made


def test_the_oldest_kernel_of_each_track_is_reported(clock: list[float]) -> None:
    one, done = track((1, "a", "s"), (2, "b", "s"), (3, "c", "t")), track((1, "a", "s"))
    one.done_position = done.done_position = 1
    assert KernelWatch().report([one, done]) == [{"kernel": "b", "session": "s", "seconds": 0.0, "queued": 1}]


def test_seconds_count_from_the_first_report_until_work_of_the_track_completes(clock: list[float]) -> None:
    watch, one, other = KernelWatch(), track((1, "a", "s"), (2, "a", "s")), track((1, "b", "s"))
    watch.report([one])
    clock[0] += 5
    assert [(each["kernel"], each["seconds"]) for each in watch.report([other, one])] == [("a", 5.0), ("b", 0.0)]
    one.done_position = 1
    clock[0] += 1
    assert [(each["kernel"], each["seconds"]) for each in watch.report([other, one])] == [("b", 1.0), ("a", 0.0)]
    other.done_position = 1
    assert len(watch.report([other, one])) == 1


def test_a_timed_launch_has_its_own_begin(clock: list[float]) -> None:
    one = track((4, "a", "s"))
    one.done_position, one.probe = 3, LaunchProbe(4, int(97.5e9))
    assert KernelWatch().report([one])[0]["seconds"] == 2.5
    one.probe = LaunchProbe(5, int(90e9))
    assert KernelWatch().report([one])[0]["seconds"] == 0.0


def test_the_report_is_bounded(clock: list[float]) -> None:
    tracks = [track((1, "k" * 1000, "s")) for _ in range(3 * MAX_KERNELS)]
    found = KernelWatch().report(tracks)
    assert len(found) == MAX_KERNELS and len(found[0]["kernel"]) == 200
