"""Latency buckets: each duration falls into the right one, and none is lost."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.platform.telemetry import BOUNDS_NS, BUCKETS, Histogram


def bucket(ns: int) -> int:
    """Returns the bucket in which a latency is counted."""
    histogram = Histogram()
    histogram.observe(ns)
    return histogram.counts.index(1)


def test_bounds_are_inclusive() -> None:
    assert [bucket(ns) for ns in (0, 1, 1000, 1001, 2000, 2001, 4000, 4001)] == [0, 0, 0, 1, 1, 2, 2, 3]
    assert bucket(BOUNDS_NS[-1]) == BUCKETS - 1 and bucket(BOUNDS_NS[-1] + 1) == BUCKETS
    assert bucket(10**18) == BUCKETS, "years"
    assert bucket(-5) == 0, "a clock that was set back"


@given(st.integers(min_value=-(10**6), max_value=10**12))
def test_a_bucket_is_the_first_whose_bound_is_not_below(ns: int) -> None:
    assert bucket(ns) == bisect_left(BOUNDS_NS, ns)


@given(st.lists(st.integers(min_value=0, max_value=10**12)), st.integers(min_value=0, max_value=1000))
def test_every_observation_is_counted_once(durations: list[int], at_once: int) -> None:
    histogram = Histogram()
    for ns in durations:
        histogram.observe(ns)
    snapshot = histogram.snapshot(at_once)
    assert sum(snapshot["counts"]) == len(durations) + at_once  # type: ignore[arg-type,call-overload]
    assert snapshot["sum_ns"] == sum(durations)
    assert len(snapshot["counts"]) == len(snapshot["bounds_ns"]) + 1  # type: ignore[arg-type]
    assert sum(histogram.counts) == len(durations), "a snapshot changes nothing"
