"""Launches are held back in growing intervals, and never for more than about half of the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.idle_queue import FIRST_S, LONGEST_S, PATIENCE_S, holding


def test_work_is_not_held_back_at_first() -> None:
    assert holding(0) == (False, PATIENCE_S)
    held, left = holding(PATIENCE_S + FIRST_S / 4)
    assert held
    assert abs(left - 0.75 * FIRST_S) < 1e-9
    assert not holding(PATIENCE_S + 1.5 * FIRST_S)[0]


@given(st.floats(0, 1000))
def test_reported_hold_time_is_kept(waited: float) -> None:
    held, left = holding(waited)
    assert 0 < left <= LONGEST_S
    assert holding(waited + 0.9 * left)[0] is held
    assert holding(waited + left + 1e-6)[0] is not held or left < 1e-6


def test_hold_times_grow_and_leave_half_of_the_time_to_others() -> None:
    waited, held_s, longest = 0.0, 0.0, 0.0
    while waited < 100:
        held, left = holding(waited)
        if held:
            held_s += left
            longest = max(longest, left)
        waited += left + 1e-7
    assert longest > 0.99 * LONGEST_S
    assert held_s <= 0.55 * waited
