"""Red zones: every byte written outside a buffer is detected, without false positives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.launch.red_zones import ALIGNMENT, LARGEST, PATTERN, SMALLEST, Damage, find_damage, pattern, shadow


@given(st.integers(0, 64 << 20))
def test_red_zones_adjoin_the_buffer_on_both_sides(size: int) -> None:
    plan = shadow(size)
    assert plan.buffer_offset % ALIGNMENT == 0
    assert SMALLEST <= plan.zone <= LARGEST
    assert plan.second_zone == plan.buffer_offset + size
    assert plan.total % len(PATTERN) == 0
    assert plan.total - plan.second_zone >= plan.zone


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_zone_continues_the_fill(start: int, size: int) -> None:
    assert pattern(start, size) == (PATTERN * 30)[start : start + size]


@given(st.integers(0, 5000), st.data())
def test_writes_into_red_zones_are_found(size: int, data: st.DataObject) -> None:
    plan = shadow(size)
    memory = bytearray(pattern(0, plan.total))
    memory[plan.buffer_offset : plan.second_zone] = bytes(size)
    start, length = data.draw(st.sampled_from([(0, plan.zone), (plan.second_zone, plan.total - plan.second_zone)]))
    assert find_damage(memory[start : start + length], start, plan) is None
    at = data.draw(st.sets(st.integers(start, start + length - 1), min_size=1, max_size=5))
    for index in at:
        memory[index] ^= 0xFF
    expected = Damage(min(at) - plan.buffer_offset, max(at) - plan.buffer_offset, len(at))
    assert find_damage(memory[start : start + length], start, plan) == expected
