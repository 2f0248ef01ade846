"""Layouts of arrays in memory on which client and daemon must agree: rows, pitch and overlap.

Sizes, offsets, pitches and strides are in bytes. All arithmetic uses Python integers, so nothing overflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MIN_PITCH_ALIGNMENT = 16
MAX_PITCH_ALIGNMENT = 512
"""Alignment bounds of CubeCL, in bytes: the alignment of a row's start grows with the row, from that of a vector load
to that of cudaMallocPitch."""


class RowLayout(NamedTuple):
    """`rows` rows of `width` bytes from `offset` on; consecutive rows start `pitch` bytes apart."""

    offset: int
    width: int
    rows: int = 1
    pitch: int = 0

    @property
    def size(self) -> int:
        """Total size of the rows, in bytes, without the gaps between them."""
        return self.width * self.rows

    @property
    def extent(self) -> int:
        """Number of bytes from the first row's start to the last row's end; 0 if there are no rows."""
        return (self.rows - 1) * self.pitch + self.width if self.size else 0

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + self.extent

    @property
    def dense(self) -> bool:
        """True if the rows have no gaps and form one range."""
        return self.rows <= 1 or self.width in (0, self.pitch)

    def __str__(self) -> str:
        if self.dense:
            return f"[{self.offset}..{self.end})"
        return f"[{self.offset}..{self.end}) in {self.rows} rows of {self.width}, {self.pitch} apart"


class StrideLayout(NamedTuple):
    """Elements at a constant distance along each axis, which may be negative, and which are not rows.

    Only the client has such layouts: the daemon's commands take rows.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def low(self) -> int:
        """Offset of the lowest byte relative to the first element; 0 or negative."""
        return sum(min(0, (length - 1) * stride) for length, stride in zip(self.shape, self.strides, strict=True))

    @property
    def end(self) -> int:
        """Offset after the highest byte, relative to the first element."""
        high = sum(max(0, (length - 1) * stride) for length, stride in zip(self.shape, self.strides, strict=True))
        return high + self.itemsize


class Layout(NamedTuple):
    """Byte strides of an array and the memory that it takes."""

    strides: tuple[int, ...]
    size: int


def strides_of(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Returns the bytes from one element to the next along each axis, in C order without padding."""
    strides = []
    stride = itemsize
    for axis in reversed(shape):
        strides.append(stride)
        stride *= max(axis, 1)
    return tuple(reversed(strides))


def contiguous(shape: Sequence[int], itemsize: int) -> Layout:
    """Returns the layout of C order without padding."""
    return Layout(strides_of(shape, itemsize), math.prod(shape) * itemsize)


def pitch_of(length: int, itemsize: int) -> int:
    """Returns the number of bytes from the start of one row of `length` elements to the next, as in CubeCL.

    The row's size is rounded up to an alignment: a power of two between 16 and 512 that grows with the row. Rows of at
    most one element are not padded. If the alignment is not a whole number of elements, the least common multiple of
    both is used.
    """
    width = length * itemsize
    if length <= 1:
        return width
    alignment = min(max(1 << (width - 1).bit_length(), MIN_PITCH_ALIGNMENT), MAX_PITCH_ALIGNMENT)
    alignment = math.lcm(alignment, itemsize)
    return -(-width // alignment) * alignment


def pitched(shape: Sequence[int], itemsize: int) -> Layout:
    """Returns the layout of C order with padded rows.

    Only the second-last stride is padded, and the outer strides follow from it. An array without axes is contiguous; an
    array with a single axis is one padded row.
    """
    if not shape:
        return contiguous(shape, itemsize)
    pitch = pitch_of(shape[-1], itemsize)
    outer = contiguous(shape[:-1], pitch)
    return Layout((*outer.strides, itemsize), outer.size if shape[-1] else 0)


def rows_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> RowLayout | None:
    """Returns the fewest rows, from offset 0, that an array of these strides consists of, in C order.

    Returns None if the array does not consist of such rows. Copies take such arrays: the inner axes have no gaps, and
    the outer axes have one common distance. Strides that are negative, zero or less than a row are not supported.
    """
    if 0 in shape:
        return RowLayout(0, 0)
    axes = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length > 1]
    width = itemsize
    while axes and axes[-1][1] == width:
        width *= axes.pop()[0]
    if not axes:
        return RowLayout(0, width)
    rows, pitch = axes.pop()
    if pitch < width:
        return None
    while axes:
        length, stride = axes.pop()
        if stride != pitch * rows:
            return None
        rows *= length
    return RowLayout(0, width, rows, pitch)


def overlap(first: RowLayout, second: RowLayout) -> bool:
    """Returns True if two ranges of one buffer have a byte in common.

    Exact for rows of equal pitch, and if one of the two is a single range. Rows of different pitches count as
    overlapping if the ranges from their first to their last byte overlap.
    """
    if not first.size or not second.size or first.end <= second.offset or second.end <= first.offset:
        return False
    first, second = _merge_dense_rows(first), _merge_dense_rows(second)
    pitch = max(first.pitch, second.pitch, 1)
    if min(first.pitch, second.pitch) not in (0, pitch):
        return True
    # A row of `second` starts (row difference) * pitch - distance bytes after a row of `first`.
    distance = first.offset - second.offset
    nearest = max((distance - second.width) // pitch + 1, 1 - first.rows)
    return nearest < second.rows and nearest * pitch < distance + first.width


def clash(reads: Iterable[tuple[int, int]], writes: Iterable[tuple[int, int]]) -> bool:
    """Returns True if some byte is written by one range and read or written by another.

    Each range is a pair of start and exclusive end.
    """
    max_end = max_written_end = 0  # the largest end of the ranges (all; written ones) that begin earlier
    for start, end, is_write in sorted([(*span, False) for span in reads] + [(*span, True) for span in writes]):
        if start == end:
            continue
        if start < (max_end if is_write else max_written_end):
            return True
        max_end = max(max_end, end)
        if is_write:
            max_written_end = max(max_written_end, end)
    return False


def _merge_dense_rows(rows: RowLayout) -> RowLayout:
    """Returns dense rows as one row; a single row has no pitch."""
    return RowLayout(rows.offset, rows.size) if rows.dense else rows
