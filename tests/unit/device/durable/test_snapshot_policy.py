"""Two areas for the copies of a buffer, and the host memory that copies in progress may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.durable.snapshot_policy import CHUNK, SnapshotAreas, StagingAllowance


def test_areas_alternate_and_the_last_complete_copy_is_not_overwritten() -> None:
    areas = SnapshotAreas(8192, 4096)
    assert areas.committed is None and areas.idle
    offsets = []
    for _ in range(4):
        area = areas.begin()
        assert area != areas.committed and not areas.idle
        offsets.append(areas.at(area))
        areas.send()
        assert not areas.idle  # until the front has answered, either area may be the valid one
        areas.commit()
        assert areas.committed == area and areas.idle
    assert offsets == [8192, 12288, 8192, 12288]


def test_a_copy_that_fails_leaves_the_one_before() -> None:
    areas = SnapshotAreas(0, 4096, committed=1)
    assert areas.begin() == 0
    areas.fail()
    assert areas.committed == 1 and areas.idle
    assert areas.begin() == 0


def test_a_second_copy_cannot_begin_during_the_first() -> None:
    areas = SnapshotAreas(0, 4096)
    areas.begin()
    with pytest.raises(AssertionError):
        areas.begin()
    with pytest.raises(AssertionError):
        areas.commit()  # the copy was not reported to the front


def test_copy_above_the_allowance_runs_alone_and_never_ahead() -> None:
    allowance = StagingAllowance(4)
    assert allowance.chunk() == 1
    big = StagingAllowance(256 << 20)
    assert big.chunk() == CHUNK and big.chunk(pinned=1 << 20) == 1 << 19
    assert big.acquire(100 << 20, early=False)  # larger than the allowance, and therefore allowed alone
    assert not big.acquire(1, early=False)
    assert big.release(100 << 20, early=False)  # a request has been denied meanwhile
    assert big.acquire(16 << 20, early=True)
    assert not big.acquire(1, early=True)
    assert big.acquire(48 << 20, early=False)
    assert not big.acquire(1, early=False)


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.booleans()), max_size=60))
def test_staging_memory_in_use_is_bounded(steps: list[tuple[int, bool, bool]]) -> None:
    """Steps are (size, ahead, return one chunk first). At most a quarter is held together, or one chunk alone; at most
    a sixteenth ahead."""
    cap = 128
    allowance, chunks = StagingAllowance(cap), []
    for size, early, returns in steps:
        if returns and chunks:
            allowance.release(*chunks.pop())
        if allowance.acquire(size, early):
            chunks.append((size, early))
        total = sum(size for size, _ in chunks)
        assert allowance.in_use == total
        assert total <= cap // 4 or len(chunks) == 1
        assert sum(size for size, early in chunks if early) <= cap // 16
    for chunk in chunks:
        allowance.release(*chunk)
    assert allowance.in_use == 0 and allowance.acquire(cap // 16, early=True)
