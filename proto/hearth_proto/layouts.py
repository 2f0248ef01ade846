"""Layouts of arrays in memory, as far as client and daemon have to agree on them: rows, pitch and overlap.

Sizes, offsets, pitches and strides are bytes. Everything is Python integers, so nothing wraps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MIN_PITCH_ALIGNMENT = 16
MAX_PITCH_ALIGNMENT = 512
"""CubeCL's: the alignment of a row's start grows with the row, from a vector load's to what cudaMallocPitch gives."""


class RowLayout(NamedTuple):
    """`rows` rows of `width` bytes from `offset` on, the start of each `pitch` bytes behind the one before."""

    offset: int
    width: int
    rows: int = 1
    pitch: int = 0

    @property
    def size(self) -> int:
        """Bytes in the rows, without what lies between them."""
        return self.width * self.rows

    @property
    def extent(self) -> int:
        """Bytes from the first row's start to the last row's end; 0 where there are none."""
        return (self.rows - 1) * self.pitch + self.width if self.size else 0

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.offset + self.extent

    @property
    def dense(self) -> bool:
        """True if the rows lie one behind the other, as one range."""
        return self.rows <= 1 or self.width in (0, self.pitch)

    def __str__(self) -> str:
        if self.dense:
            return f"[{self.offset}..{self.end})"
        return f"[{self.offset}..{self.end}) in {self.rows} rows of {self.width}, {self.pitch} apart"


class Layout(NamedTuple):
    """Byte strides of an array and the memory that it takes."""

    strides: tuple[int, ...]
    size: int


def contiguous(shape: Sequence[int], itemsize: int) -> Layout:
    """C order without padding."""
    strides = []
    step = itemsize
    for axis in reversed(shape):
        strides.append(step)
        step *= max(axis, 1)
    return Layout(tuple(reversed(strides)), math.prod(shape) * itemsize)


def pitch_of(last: int, itemsize: int) -> int:
    """Bytes from the start of one row of `last` elements to the next, as CubeCL computes it.

    The row's size, rounded up to a power of two between 16 and 512 that grows with the row (to the element's size, for
    rows of one). Where that is no whole number of elements, to a multiple of both.
    """
    width = last * itemsize
    if last <= 1:
        return width
    alignment = min(max(1 << (width - 1).bit_length(), MIN_PITCH_ALIGNMENT), MAX_PITCH_ALIGNMENT)
    alignment = math.lcm(alignment, itemsize)
    return -(-width // alignment) * alignment


def pitched(shape: Sequence[int], itemsize: int) -> Layout:
    """C order with padded rows: only the second last stride is padded, the outer ones follow from it.

    An array without axes is contiguous; one with a single axis is one padded row.
    """
    if not shape:
        return contiguous(shape, itemsize)
    pitch = pitch_of(shape[-1], itemsize)
    outer = contiguous(shape[:-1], pitch)
    return Layout((*outer.strides, itemsize), outer.size if shape[-1] else 0)


def rows_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> RowLayout | None:
    """The fewest rows, from offset 0, that an array of these strides consists of, in C order; None where it has none.

    What copies take: the inner axes without gaps, the others at one distance from each other. Strides that are
    negative, zero or less than a row are not taken.
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

    Exact for rows of the same pitch, and where one of the two is a single range. Rows of different pitches count as
    overlapping where the ranges from their first to their last byte do.
    """
    if not first.size or not second.size or first.end <= second.offset or second.end <= first.offset:
        return False
    first, second = _whole(first), _whole(second)
    pitch = max(first.pitch, second.pitch, 1)
    if min(first.pitch, second.pitch) not in (0, pitch):
        return True
    # A row of `second` lies (row difference) * pitch - behind bytes further on than one of `first`.
    behind = first.offset - second.offset
    nearest = max((behind - second.width) // pitch + 1, 1 - first.rows)
    return nearest < second.rows and nearest * pitch < behind + first.width


def clash(reads: Iterable[tuple[int, int]], writes: Iterable[tuple[int, int]]) -> bool:
    """Returns True if bytes are written that are read or written besides; ranges from their start to before their
    end."""
    used = written = 0  # how far the ranges reach that begin before
    for start, end, writes_it in sorted([(*each, False) for each in reads] + [(*each, True) for each in writes]):
        if start == end:
            continue
        if start < (used if writes_it else written):
            return True
        used = max(used, end)
        if writes_it:
            written = max(written, end)
    return False


def _whole(given: RowLayout) -> RowLayout:
    """Dense rows as one; a single row has no pitch."""
    return RowLayout(given.offset, given.size) if given.dense else given
