"""Number of commands in one slice: as many as take the length of a slice, never permanently none, and few while the
pace is unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.scheduler.pace import FIRST_SLICE, MAX_COMMANDS, MAX_SLICES_ON_DEVICE, SLICE_S, Pace


def known(seconds: float) -> Pace:
    pace = Pace()
    pace.update(1, seconds, seconds)
    return pace


def test_few_commands_of_unknown_cost_are_submitted() -> None:
    pace = Pace()
    assert pace.slice_size(0) == FIRST_SLICE
    assert pace.slice_size(FIRST_SLICE) == 0
    assert pace.expected_time(3) == math.inf
    pace.update(0, 5.0, 5.0)
    assert pace.slice_size(0) == FIRST_SLICE


@given(st.floats(1e-7, 10.0), st.integers(0, 2000), st.floats(-1.0, MAX_SLICES_ON_DEVICE * SLICE_S))
def test_submitted_work_is_bounded_by_the_time_limit(seconds: float, on_device: int, limit: float) -> None:
    most = known(seconds).slice_size(on_device, limit)
    assert 0 <= most <= MAX_COMMANDS
    assert most >= 1 or on_device
    assert most <= 1 or (on_device + most - 1) * seconds <= max(limit, 0.0) * 1.001


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-7, 1.0)), min_size=1, max_size=50))
def test_estimate_lies_within_the_samples(samples: list[tuple[int, float]]) -> None:
    pace = Pace()
    for count, seconds in samples:
        pace.update(count, seconds, seconds)
    each = [max(seconds / count, 1e-7) for count, seconds in samples]
    assert min(each) * 0.999 <= pace.seconds <= max(each) * 1.001
    assert min(each) * 0.999 <= pace.fastest <= max(each) * 1.001


def test_estimate_falls_quickly_and_rises_slowly() -> None:
    pace = known(1e-3)
    pace.update(1, 1e-4, 1e-4)
    assert pace.seconds < 6e-4
    pace.update(1, 1e-3, 1e-3)
    assert pace.seconds < 7e-4
    for _ in range(400):
        pace.update(1, 1e-3, 1e-3)
    assert pace.seconds == pytest.approx(1e-3, rel=0.01)
    assert pace.fastest == pytest.approx(1e-3, rel=0.01)


def test_owed_time_is_that_without_other_sessions() -> None:
    pace = known(2e-4)
    pace.update(10, 5e-3, 5e-3)  # shared with other sessions
    assert pace.expected_time(10) == pytest.approx(2e-3, rel=0.05)
