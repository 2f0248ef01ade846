"""Times of launches, and the launches that are selected when a track has become idle."""

from __future__ import annotations

import pytest

from hearthd.device.streams.launch_timing import LaunchTiming
from hearthd.device.streams.track import IDLE_PERIODS, TIME_NEXT, TIMED, PooledStream


@pytest.fixture
def track() -> PooledStream:
    return PooledStream(0, None, 0)


def test_launch_is_timed_until_its_position_is_completed(track: PooledStream) -> None:
    timing, told = LaunchTiming(), list[int]()
    timing.on_done = told.append
    timing.begin(track, 5)
    assert track.timing == TIMED, "its end has to be noticed"
    timing.completed(track, 4)
    assert not told
    timing.completed(track, 6)
    assert len(told) == 1 and track.probe is None and not track.timing
    timing.completed(track, 7)
    assert len(told) == 1


def test_selection_during_a_timed_launch_is_kept(track: PooledStream) -> None:
    """The track has a new user while a launch of the previous one is being timed."""
    timing = LaunchTiming()
    timing.begin(track, 5)
    track.timing = TIME_NEXT
    timing.completed(track, 5)
    assert track.timing == TIME_NEXT


def test_launch_is_selected_after_a_number_of_idle_periods(track: PooledStream) -> None:
    timing, track.timing = LaunchTiming(), 0
    for _ in range(IDLE_PERIODS - 1):
        timing.became_idle(track)
    assert not track.timing
    timing.became_idle(track)
    assert track.timing == TIME_NEXT
