"""A stopwatch counts its intervals and no time between them, and releases its events as early as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hearthd.device.profiling.stopwatch import Stopwatch


class Clock:
    """A server with its tracks; events are points of a clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0
        self.live: set[int] = set()
        self.times: list[int] = []
        self.pending: list[Callable[[], None]] = []

    def record(self, _stream: Any, *, timing: bool = False) -> int:
        assert timing
        self.times.append(self.now)
        self.live.add(len(self.times) - 1)
        return len(self.times) - 1

    def elapsed_ns(self, start: int, end: int) -> int:
        assert {start, end} <= self.live
        return self.times[end] - self.times[start]

    def release_event(self, event: int) -> None:
        self.live.remove(event)

    def on_complete(self, _track: Any, callback: Callable[[], None]) -> None:
        self.pending.append(callback)

    def finish(self) -> None:
        for callback in self.pending:
            callback()
        self.pending.clear()


class Track:
    stream = None


def stopwatch(clock: Clock, running: bool = True) -> Stopwatch:
    return Stopwatch(clock, clock, Track(), running)  # type: ignore[arg-type]


def test_only_measured_stretches_count() -> None:
    clock = Clock()
    watch = stopwatch(clock)
    watch.stop()
    for length in (5, 0, 7):
        watch.start()
        watch.start()
        clock.now += length
        watch.stop()
        watch.stop()
        clock.now += 1000
    assert watch.elapsed_ns == 0 and len(clock.live) == 6
    clock.finish()
    assert watch.elapsed_ns == 12 and not clock.live


def test_stopped_stopwatch_records_nothing() -> None:
    clock = Clock()
    watch = stopwatch(clock, running=False)
    watch.start()
    clock.now += 5
    watch.stop()
    assert not clock.times and not clock.pending and watch.elapsed_ns == 0
