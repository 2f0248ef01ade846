"""Selection of the launches that are timed, if other commands are submitted between launches."""

from __future__ import annotations

import pytest

from hearthd.device.streams.launch_timing import LaunchTiming
from hearthd.device.streams.track import TIME_NEXT, TIMED, PooledStream


@pytest.fixture
def track() -> PooledStream:
    return PooledStream(0, None, 0)


def test_what_is_no_launch_leaves_the_next_command_to_be_timed(track: PooledStream) -> None:
    timing = LaunchTiming()
    assert not timing.passed(track)
    assert (track.timing, track.probe) == (TIME_NEXT, None)
    timing.between(track, 1)  # another command is submitted in between
    assert track.timing == TIMED
    assert not timing.passed(track)
    assert (track.timing, track.probe) == (TIME_NEXT, None)


def test_a_launch_before_it_is_noticed_once_and_timed(track: PooledStream) -> None:
    timing, told = LaunchTiming(), []
    timing.on_done = told.append
    timing.between(track, 4)
    track.launched.append((5, "kernel", "session"))
    assert timing.passed(track), "its end has to be noticed"
    assert not timing.passed(track) and not track.timing
    timing.reached(track, 4)
    assert not told
    timing.reached(track, 6)
    assert len(told) == 1 and track.probe is None
