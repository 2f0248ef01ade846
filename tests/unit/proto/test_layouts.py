"""Layouts: CubeCL's pitch, the rows of an array, and the overlap of rows and ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.layouts import Layout, RowLayout, clash, contiguous, overlap, pitch_of, pitched, rows_of

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
itemsizes = st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 24])


@pytest.mark.parametrize(
    ("last", "itemsize", "pitch"),
    [
        (1, 4, 4), (1, 2, 2), (1, 16, 16),  # rows of one element are not padded
        (2, 4, 16), (3, 4, 16), (4, 4, 16),  # at least the alignment of a vector load
        (5, 4, 32), (17, 4, 128), (33, 4, 256), (100, 4, 512), (128, 4, 512),  # the next power of two
        (129, 4, 1024), (250, 4, 1024), (256, 4, 1024), (257, 4, 1536), (1000, 8, 8192),  # at most 512
        (5, 12, 192), (7, 3, 96),  # a whole number of elements
        (0, 4, 0),
    ],
)  # fmt: skip
def test_the_pitch_is_cubecl_s(last: int, itemsize: int, pitch: int) -> None:
    assert pitch_of(last, itemsize) == pitch


def test_layouts_of_known_shapes() -> None:
    assert contiguous((2, 3, 4), 4) == Layout((48, 16, 4), 96)
    assert contiguous((), 8) == Layout((), 8)
    assert contiguous((2, 0, 3), 4).size == 0
    assert pitched((3, 5, 17), 4) == Layout((5 * 128, 128, 4), 3 * 5 * 128)
    assert pitched((17,), 4) == Layout((4,), 128)
    assert pitched((), 8) == Layout((), 8)
    assert pitched((4, 1), 4) == contiguous((4, 1), 4)
    assert pitched((4, 0), 4).size == 0 and pitched((0, 17), 4).size == 0


@given(shapes, itemsizes)
def test_pitched_rows_are_aligned_and_do_not_overlap(shape: tuple[int, ...], itemsize: int) -> None:
    layout = pitched(shape, itemsize)
    rows = rows_of(shape, layout.strides, itemsize)
    assert rows is not None and rows.size == math.prod(shape) * itemsize and rows.extent <= layout.size
    if len(shape) > 1 and shape[-1] > 1:
        pitch, width = layout.strides[-2], shape[-1] * itemsize
        assert pitch % itemsize == 0 and pitch >= width
        assert pitch % min(max(16, 1 << (width - 1).bit_length()), 512) == 0
        assert layout.size == math.prod(shape[:-1]) * pitch


@given(shapes, itemsizes, st.booleans())
def test_rows_name_the_bytes_of_an_array(shape: tuple[int, ...], itemsize: int, padded: bool) -> None:
    strides, size = (pitched if padded else contiguous)(shape, itemsize)
    memory = np.arange(size, dtype=np.int64)
    item = np.ndarray((*shape, itemsize), memory.dtype, memory, strides=(*(8 * step for step in strides), 8))
    rows = rows_of(shape, strides, itemsize)
    assert rows is not None and (padded or rows.dense)
    np.testing.assert_array_equal(item.ravel(), memory[sorted(touched(rows))])


def test_strides_that_make_no_rows() -> None:
    assert rows_of((3, 4), (4, 12), 4) is None  # transposed
    assert rows_of((3, 4), (0, 4), 4) is None  # broadcast
    assert rows_of((3, 4), (-16, 4), 4) is None  # reversed
    assert rows_of((3, 4), (8, 4), 4) is None  # overlapping rows
    assert rows_of((2, 3, 4), (100, 16, 4), 4) == RowLayout(0, 48, 2, 100)
    assert rows_of((2, 3, 4), (100, 20, 4), 4) is None  # two different distances
    assert rows_of((2, 3, 4), (60, 20, 4), 4) == RowLayout(0, 16, 6, 20)
    assert rows_of((5,), (48,), 4) == RowLayout(0, 4, 5, 48)
    assert rows_of((5, 1, 1), (48, 7, 9), 4) == RowLayout(0, 4, 5, 48)
    assert rows_of((0, 3), (1, 1), 4) == RowLayout(0, 0) and rows_of((), (), 4) == RowLayout(0, 4)


def touched(rows: RowLayout) -> set[int]:
    return {rows.offset + row * rows.pitch + byte for row in range(rows.rows) for byte in range(rows.width)}


some_rows = st.builds(
    lambda offset, width, rows, gap: RowLayout(offset, width, rows, width + gap),
    st.integers(0, 40), st.integers(0, 6), st.integers(0, 5), st.integers(0, 6),
)  # fmt: skip


@given(some_rows, some_rows)
def test_overlap_is_never_missed(first: RowLayout, second: RowLayout) -> None:
    shared = bool(touched(first) & touched(second))
    found = overlap(first, second)
    assert found == overlap(second, first)
    assert found or not shared
    if first.pitch == second.pitch or first.dense or second.dense:
        assert found == shared


ranges = st.builds(lambda start, size: (start, start + size), st.integers(0, 12), st.integers(0, 4))


@given(st.lists(ranges, max_size=4), st.lists(ranges, max_size=4))
def test_a_clash_is_a_byte_that_is_written_and_also_used_by_another_range(
    reads: list[tuple[int, int]], writes: list[tuple[int, int]]
) -> None:
    read = {byte for each in reads for byte in range(*each)}
    written = [byte for each in writes for byte in range(*each)]
    assert clash(reads, writes) == (len(set(written)) < len(written) or bool(read & set(written)))


@given(some_rows)
def test_extent_covers_the_touched_bytes(rows: RowLayout) -> None:
    bytes_ = touched(rows)
    assert rows.size == len(bytes_)
    assert rows.end == (max(bytes_) + 1 if bytes_ else rows.offset)
    assert not bytes_ or rows.dense == (len(bytes_) == rows.extent)


def test_sizes_beyond_64_bits_do_not_wrap() -> None:
    huge = RowLayout(2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1)
    assert huge.size == (2**64 - 1) ** 2 and huge.end == 2**64 - 1 + (2**64 - 1) ** 2
    assert str(RowLayout(5, 3)) == "[5..8)"
    assert str(RowLayout(5, 3, 2, 10)) == "[5..18) in 2 rows of 3, 10 apart"
