"""Launches are held back in growing intervals, and never for more than about half of the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.idle_queue import FIRST_S, GRACE_S, LONGEST_S, holding


def test_work_is_not_held_back_at_first() -> None:
    assert holding(0) == (False, GRACE_S)
    is_held, remaining = holding(GRACE_S + FIRST_S / 4)
    assert is_held
    assert abs(remaining - 0.75 * FIRST_S) < 1e-9
    assert not holding(GRACE_S + 1.5 * FIRST_S)[0]


@given(st.floats(0, 1000))
def test_reported_hold_time_is_kept(waited: float) -> None:
    is_held, remaining = holding(waited)
    assert 0 < remaining <= LONGEST_S
    assert holding(waited + 0.9 * remaining)[0] is is_held
    assert holding(waited + remaining + 1e-6)[0] is not is_held or remaining < 1e-6


def test_hold_times_grow_and_leave_half_of_the_time_to_others() -> None:
    waited, held_s, longest = 0.0, 0.0, 0.0
    while waited < 100:
        is_held, remaining = holding(waited)
        if is_held:
            held_s += remaining
            longest = max(longest, remaining)
        waited += remaining + 1e-7
    assert longest > 0.99 * LONGEST_S
    assert held_s <= 0.55 * waited
