"""Selection of the launches to be timed, with other commands between them."""

from __future__ import annotations

import pytest

from hearthd.device.streams.launch_timing import LaunchTiming
from hearthd.device.streams.track import TIME_NEXT, TIMED, PooledStream


@pytest.fixture
def track() -> PooledStream:
    return PooledStream(0, None, 0)


def test_commands_other_than_launches_are_not_timed(track: PooledStream) -> None:
    timing = LaunchTiming()
    assert not timing.skip(track)
    assert (track.timing, track.probe) == (TIME_NEXT, None)
    timing.select(track, 1)  # a command that proves not to be a launch
    assert track.timing == TIMED
    assert not timing.skip(track)
    assert (track.timing, track.probe) == (TIME_NEXT, None)


def test_earlier_launch_is_noticed_once_and_timed(track: PooledStream) -> None:
    timing, told = LaunchTiming(), []
    timing.on_done = told.append
    timing.select(track, 4)
    track.launched.append((5, "kernel", "session"))
    assert timing.skip(track), "its end has to be noticed"
    assert not timing.skip(track) and not track.timing
    timing.completed(track, 4)
    assert not told
    timing.completed(track, 6)
    assert len(told) == 1 and track.probe is None
