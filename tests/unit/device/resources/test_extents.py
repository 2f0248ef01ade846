"""Ranges never overlap, none is lost, and free ranges are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.resources.extents import Extents

steps = st.lists(st.one_of(st.integers(1, 40), st.tuples(st.integers(0, 20))), max_size=80)


@given(st.integers(0, 200), st.sampled_from([1, 4, 16]), steps)
def test_random_programs(size: int, granularity: int, program: list[int | tuple[int]]) -> None:
    size -= size % granularity
    extents = Extents(size, granularity)
    used: dict[int, int] = {}
    for action in program:
        if isinstance(action, tuple):
            if used:
                start = sorted(used)[action[0] % len(used)]
                extents.release(start, used.pop(start))
            continue
        start = extents.allocate(action)
        rounded_size = extents.rounded(action)
        holes = _holes(used, size, extents)
        if start is None:
            assert all(hole < rounded_size for hole in holes), "a hole that fits was not found"
            continue
        assert start % granularity == 0 and start + rounded_size <= size
        assert all(
            start + rounded_size <= other_start or other_start + extents.rounded(length) <= start
            for other_start, length in used.items()
        )
        used[start] = action
        assert extents.free == size - sum(extents.rounded(length) for length in used.values())
    for start, length in used.items():
        extents.release(start, length)
    assert extents.free == size
    assert size == 0 or extents.allocate(size) == 0, "all memory is one extent again"


def _holes(used: dict[int, int], size: int, extents: Extents) -> list[int]:
    holes: list[int] = []
    at = 0
    for start in sorted(used):
        holes.append(start - at)
        at = start + extents.rounded(used[start])
    return [*holes, size - at]


@pytest.mark.parametrize(("start", "size"), [(0, 8), (24, 8), (32, 8), (-8, 8), (8, 16), (0, 16)])
def test_release_of_an_unused_extent_is_refused(start: int, size: int) -> None:
    extents = Extents(32, 8)
    assert [extents.allocate(8) for _ in range(2)] == [0, 8]
    extents.release(0, 8)
    with pytest.raises(ValueError, match="not in use"):
        extents.release(start, size)
