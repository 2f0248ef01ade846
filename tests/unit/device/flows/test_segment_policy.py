"""Limits on shared memory, and the division of copies, for arbitrary numbers."""

from __future__ import annotations

import fcntl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.flows.segment_policy import (
    MAX_SEGMENTS,
    PART,
    SEALS,
    check_range,
    check_room,
    check_sealed,
    check_size,
    parts,
    step,
)  # fmt: skip

U64 = st.integers(0, (1 << 64) - 1)


@given(st.integers(-1, 0x7F))
def test_seals(seals: int) -> None:
    good = seals >= 0 and seals & SEALS == SEALS and not seals & (fcntl.F_SEAL_WRITE | 0x10)
    if good:
        check_sealed(seals)
    else:
        with pytest.raises(Refusal) as refusal:
            check_sealed(seals)
        assert refusal.value.reason == Reason.INVALID_ARGUMENT and refusal.value.fix


@given(st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.integers()), st.integers(0, 1 << 63))
def test_announced_size_must_equal_that_of_the_memfd(announced: object, size: int) -> None:
    if type(announced) is int and announced == size > 0:
        assert check_size(announced, size) == size
    else:
        with pytest.raises(Refusal):
            check_size(announced, size)
    if size:
        assert check_size(size, size) == size


@given(U64, U64, U64, st.integers(0, 2 * MAX_SEGMENTS))
def test_room(size: int, shared_bytes: int, max_bytes: int, count: int) -> None:
    if count < MAX_SEGMENTS and shared_bytes + size <= max_bytes:
        check_room(size, shared_bytes, max_bytes, count)
    else:
        with pytest.raises(Refusal) as refusal:
            check_room(size, shared_bytes, max_bytes, count)
        assert refusal.value.reason == Reason.QUOTA_EXCEEDED


@given(U64, U64, U64)
def test_ranges_do_not_wrap(segment: int, offset: int, size: int) -> None:
    if offset + size <= segment:
        check_range("write", 1, segment, offset, size)
    else:
        with pytest.raises(Refusal) as refusal:
            check_range("write", 1, segment, offset, size)
        assert refusal.value.reason == Reason.OUT_OF_BOUNDS


@given(st.integers(0, 1000), st.integers(1, 64))
def test_parts_cover_a_segment_once(size: int, part: int) -> None:
    at = 0
    for start, length in parts(size, part):
        assert start == at and 0 < length <= part and start % part == 0
        at += length
    assert at == size


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 64))
def test_no_copy_crosses_the_border_of_a_part(offset: int, size: int, part: int) -> None:
    copied, copies = 0, 0
    while copied < size:
        length = step(offset + copied, size - copied, part)
        assert length > 0 and (offset + copied) // part == (offset + copied + length - 1) // part
        copied += length
        copies += 1
    assert copied == size and copies <= size // part + 2


def test_parts_are_whole_huge_pages() -> None:
    assert PART % (1 << 21) == 0, "huge pages are whole"
