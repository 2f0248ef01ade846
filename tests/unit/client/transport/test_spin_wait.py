"""Duration of polling before a sleep, and the times at which copies are due."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.transport.spin_wait import CORES, DOWN, MAX_SPIN_S, MIN_PREDICTED_BYTES, MIN_SPIN_S, UP, SpinWait

SIZES = st.integers(MIN_PREDICTED_BYTES, 1 << 32)


def test_no_thread_polls_with_few_cores() -> None:
    spin_wait = SpinWait(CORES - 1)
    assert not spin_wait.max_spin_s and not spin_wait.spin_s
    for direction in (UP, DOWN):
        spin_wait.begin(direction, 1 << 30, 1.0)
        spin_wait.copy_ended(direction, 1 << 30, 1.0, 2.0)
        spin_wait.begin(direction, 1 << 30, 2.0)
    spin_wait.answer_arrived(1e-6)
    assert not spin_wait.spin_s and spin_wait.poll_interval(2.5) is None


def test_spin_time_shrinks_after_long_waits_and_recovers_after_a_short_one() -> None:
    spin_wait = SpinWait(CORES)
    assert spin_wait.spin_s == MAX_SPIN_S
    for _ in range(20):
        spin_wait.answer_arrived(1.0)
    assert spin_wait.spin_s == MIN_SPIN_S
    spin_wait.answer_arrived(1.5 * MAX_SPIN_S)
    assert spin_wait.spin_s == MAX_SPIN_S


@given(st.lists(st.floats(0.0, 100.0)))
def test_spin_time_stays_within_its_bounds(waits: list[float]) -> None:
    spin_wait = SpinWait(CORES)
    for each in waits:
        spin_wait.answer_arrived(each)
        assert MIN_SPIN_S <= spin_wait.spin_s <= MAX_SPIN_S


@given(SIZES, st.floats(1e-4, 0.5), st.sampled_from([UP, DOWN]))
def test_copy_is_due_after_the_duration_of_a_similar_copy(size: int, took: float, direction: int) -> None:
    spin_wait = SpinWait(CORES)
    assert spin_wait.poll_interval(10.0) is None
    spin_wait.begin(direction, size, 10.0)
    assert spin_wait.poll_interval(10.0) is None, "nothing is known yet"
    spin_wait.copy_ended(direction, size, 10.0, 10.0 + took)
    spin_wait.begin(direction, size, 20.0)
    window = spin_wait.poll_interval(20.0)
    assert window is not None
    begins, ends = window
    assert begins <= 20.0 + took <= ends
    assert ends - (20.0 + took) <= 0.51e-3, "and is not polled for long after that"
    assert 20.0 + took - begins <= max(0.25e-3, took if took <= 2e-3 else 0.0) + 1e-6
    assert spin_wait.poll_interval(ends + 1e-6) is None
    spin_wait.begin(1 - direction, size, 30.0)
    assert spin_wait.poll_interval(30.0) is None, "no pace is known for the other direction"


def test_consecutive_copies_are_due_one_after_the_other() -> None:
    spin_wait, size = SpinWait(CORES), 64 << 20
    spin_wait.begin(UP, size, 0.0)
    spin_wait.copy_ended(UP, size, 0.0, 0.01)
    for _ in range(3):
        spin_wait.begin(UP, size, 1.0)
    assert _expected_end(spin_wait, 1.0) == pytest.approx(1.03)
    spin_wait.copy_ended(UP, size, 1.0, 1.01)
    assert _expected_end(spin_wait, 1.01) == pytest.approx(1.03), "two copies are in flight"
    spin_wait.copy_ended(UP, size, 1.0, 1.02)
    spin_wait.copy_ended(UP, size, 1.0, 1.025)
    assert spin_wait.poll_interval(1.03) is None, "all are done, the last one before its predicted end"


def test_a_slower_copy_changes_the_pace_little_and_a_faster_one_fully() -> None:
    spin_wait, size, now = SpinWait(CORES), 64 << 20, 0.0

    def after(took: float) -> float:
        nonlocal now
        now += 10.0
        spin_wait.begin(DOWN, size, now)
        spin_wait.copy_ended(DOWN, size, now, now + took)
        spin_wait.begin(DOWN, size, now + 1.0)
        expected_end = _expected_end(spin_wait, now + 1.0) - now - 1.0
        spin_wait.signalled(now + 1.0)  # ends the second copy, whose answer is not processed
        return expected_end

    assert after(0.010) == pytest.approx(0.010)
    assert after(0.020) == pytest.approx(0.0125)
    assert after(0.005) == pytest.approx(0.005)


def test_small_and_very_long_copies_are_not_predicted() -> None:
    spin_wait = SpinWait(CORES)
    spin_wait.begin(UP, MIN_PREDICTED_BYTES - 1, 0.0)
    spin_wait.copy_ended(UP, MIN_PREDICTED_BYTES - 1, 0.0, 1.0)
    spin_wait.begin(UP, MIN_PREDICTED_BYTES - 1, 5.0)
    assert spin_wait.poll_interval(5.5) is None
    spin_wait.begin(UP, 1 << 40, 10.0)
    spin_wait.copy_ended(UP, 1 << 40, 10.0, 20.0)
    spin_wait.begin(UP, 1 << 40, 30.0)
    assert spin_wait.poll_interval(30.0) is None
    assert spin_wait.poll_interval(39.5) is not None, "but its end is polled for when it is near"


def _expected_end(spin_wait: SpinWait, now: float) -> float:
    """Returns the predicted end of the last copy: the window begins one margin before it and ends two margins after."""
    window = spin_wait.poll_interval(now)
    assert window is not None
    expected_end = (2 * window[0] + window[1]) / 3
    assert math.isfinite(expected_end)
    return expected_end
