"""Duration of polling before a sleep, and the times at which copies are due."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.transport.spin_wait import CORES, DOWN, MAX_SPIN_S, MIN_PREDICTED_BYTES, MIN_SPIN_S, UP, SpinWait

SIZES = st.integers(MIN_PREDICTED_BYTES, 1 << 32)


def test_no_thread_polls_with_few_cores() -> None:
    lookout = SpinWait(CORES - 1)
    assert not lookout.max_spin_s and not lookout.spin_s
    for way in (UP, DOWN):
        lookout.begin(way, 1 << 30, 1.0)
        lookout.copy_ended(way, 1 << 30, 1.0, 2.0)
        lookout.begin(way, 1 << 30, 2.0)
    lookout.answer_arrived(1e-6)
    assert not lookout.spin_s and lookout.poll_interval(2.5) is None


def test_spin_time_shrinks_after_long_waits_and_recovers_after_a_short_one() -> None:
    lookout = SpinWait(CORES)
    assert lookout.spin_s == MAX_SPIN_S
    for _ in range(20):
        lookout.answer_arrived(1.0)
    assert lookout.spin_s == MIN_SPIN_S
    lookout.answer_arrived(1.5 * MAX_SPIN_S)
    assert lookout.spin_s == MAX_SPIN_S


@given(st.lists(st.floats(0.0, 100.0)))
def test_spin_time_stays_within_its_bounds(waits: list[float]) -> None:
    lookout = SpinWait(CORES)
    for each in waits:
        lookout.answer_arrived(each)
        assert MIN_SPIN_S <= lookout.spin_s <= MAX_SPIN_S


@given(SIZES, st.floats(1e-4, 0.5), st.sampled_from([UP, DOWN]))
def test_copy_is_due_after_the_duration_of_a_similar_copy(size: int, took: float, way: int) -> None:
    lookout = SpinWait(CORES)
    assert lookout.poll_interval(10.0) is None
    lookout.begin(way, size, 10.0)
    assert lookout.poll_interval(10.0) is None, "nothing is known yet"
    lookout.copy_ended(way, size, 10.0, 10.0 + took)
    lookout.begin(way, size, 20.0)
    window = lookout.poll_interval(20.0)
    assert window is not None
    begins, ends = window
    assert begins <= 20.0 + took <= ends
    assert ends - (20.0 + took) <= 0.51e-3, "and is not looked for long behind that"
    assert 20.0 + took - begins <= max(0.25e-3, took if took <= 2e-3 else 0.0) + 1e-6
    assert lookout.poll_interval(ends + 1e-6) is None
    lookout.begin(1 - way, size, 30.0)
    assert lookout.poll_interval(30.0) is None, "of the other way nothing is known"


def test_copies_in_a_row_are_due_one_behind_the_other() -> None:
    lookout, size = SpinWait(CORES), 64 << 20
    lookout.begin(UP, size, 0.0)
    lookout.copy_ended(UP, size, 0.0, 0.01)
    for _ in range(3):
        lookout.begin(UP, size, 1.0)
    assert _due(lookout, 1.0) == pytest.approx(1.03)
    lookout.copy_ended(UP, size, 1.0, 1.01)
    assert _due(lookout, 1.01) == pytest.approx(1.03), "two are under way"
    lookout.copy_ended(UP, size, 1.0, 1.02)
    lookout.copy_ended(UP, size, 1.0, 1.025)
    assert lookout.poll_interval(1.03) is None, "all are done, the last one sooner than it was due"


def test_a_slower_one_changes_little_and_a_faster_one_all() -> None:
    lookout, size, now = SpinWait(CORES), 64 << 20, 0.0

    def after(took: float) -> float:
        nonlocal now
        now += 10.0
        lookout.begin(DOWN, size, now)
        lookout.copy_ended(DOWN, size, now, now + took)
        lookout.begin(DOWN, size, now + 1.0)
        due = _due(lookout, now + 1.0) - now - 1.0
        lookout.signalled(now + 1.0)  # ends the second copy, whose answer is not processed
        return due

    assert after(0.010) == pytest.approx(0.010)
    assert after(0.020) == pytest.approx(0.0125)
    assert after(0.005) == pytest.approx(0.005)


def test_small_and_very_long_ones_are_not_foreseen() -> None:
    lookout = SpinWait(CORES)
    lookout.begin(UP, MIN_PREDICTED_BYTES - 1, 0.0)
    lookout.copy_ended(UP, MIN_PREDICTED_BYTES - 1, 0.0, 1.0)
    lookout.begin(UP, MIN_PREDICTED_BYTES - 1, 5.0)
    assert lookout.poll_interval(5.5) is None
    lookout.begin(UP, 1 << 40, 10.0)
    lookout.copy_ended(UP, 1 << 40, 10.0, 20.0)
    lookout.begin(UP, 1 << 40, 30.0)
    assert lookout.poll_interval(30.0) is None
    assert lookout.poll_interval(39.5) is not None, "but its end is, when it is near"


def _due(lookout: SpinWait, now: float) -> float:
    """Returns the predicted end of the last copy: the window begins one margin before it and ends two margins after."""
    window = lookout.poll_interval(now)
    assert window is not None
    due = (2 * window[0] + window[1]) / 3
    assert math.isfinite(due)
    return due
