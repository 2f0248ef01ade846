"""Extra slices of a session with a late slice."""

from __future__ import annotations

import itertools

from hearthd.device.scheduler.extra_slices import LONGEST_S, SHORTEST_S, ExtraSlices


def taken(extra_slices: ExtraSlices, begin: float, end: float) -> list[float]:
    """Returns the times at which extra slices are taken if one is requested every millisecond."""
    times = (begin + each / 1000 for each in range(int((end - begin) * 1000)))
    return [now for now in times if extra_slices.claim(now)]


def test_the_interval_doubles_up_to_a_limit() -> None:
    times = taken(ExtraSlices(), 0.0, 8.0)
    intervals = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert abs(intervals[0] - SHORTEST_S) < 0.002
    assert abs(intervals[-1] - LONGEST_S) < 0.002
    assert all(later > 1.5 * earlier or later > LONGEST_S - 0.01 for earlier, later in itertools.pairwise(intervals))


def test_the_intervals_begin_anew_with_each_completed_slice() -> None:
    extra_slices, given = ExtraSlices(), 0
    for each in range(1000):
        if extra_slices.claim(each / 1000):
            given += 1
            extra_slices.reset()
    assert given >= 0.9 / SHORTEST_S, "a session whose slices complete gets as many as the shortest interval allows"
    assert len(taken(extra_slices, 1.0, 2.0)) < 12
