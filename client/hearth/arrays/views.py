"""Views of an array: the same memory in another shape, dtype or order of axes.

Pure functions over shape, strides in bytes and dtype; nothing here transfers or waits. Indexing is in `strided`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from hearth import shapes
from hearth.arrays import strided
from hearth.errors import ArgumentError, UnsupportedError
from hearth_proto import layouts

if TYPE_CHECKING:
    from hearth.dtypes import Dtype
    from hearth.interfaces import ArrayLike

A = TypeVar("A", bound="ArrayLike")
Strides = tuple[int, ...] | None
"""Strides in bytes; None: those of C order."""


class Flags:
    """Memory layout of an array, by NumPy's names."""

    __slots__ = ("c_contiguous", "f_contiguous")

    def __init__(self, c_contiguous: bool, f_contiguous: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous

    def __getitem__(self, name: str) -> bool:
        if name not in ("C_CONTIGUOUS", "F_CONTIGUOUS"):
            raise KeyError(name)
        return self.c_contiguous if name[0] == "C" else self.f_contiguous

    def __repr__(self) -> str:
        return f"C_CONTIGUOUS : {self.c_contiguous}\nF_CONTIGUOUS : {self.f_contiguous}"


def flags(array: ArrayLike) -> Flags:
    """The array's memory layout."""
    transposed = layouts.rows_of(array.shape[::-1], array.strides[::-1], array.itemsize)
    return Flags(array._as_rows().dense, transposed is not None and transposed.dense)


def reshaped(rows: layouts.RowLayout, itemsize: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an array that lies in `rows`, seen as another shape of the same size.

    Raises:
        UnsupportedError: NumPy would make a copy.
    """
    strides = strided.reshaped_strides(rows, itemsize, shape)
    if strides is None:
        raise UnsupportedError(
            f"rows of {rows.width} bytes, {rows.pitch} apart, cannot be seen as shape {shape}.",
            reason="UNSUPPORTED",
            fix="x.copy().reshape(...) makes a contiguous copy first.",
        )
    return strides


def squeezed(
    shape: tuple[int, ...], strides: Strides, axis: int | tuple[int, ...] | None
) -> tuple[tuple[int, ...], Strides]:
    """Shape and strides without the axes of length 1, or without those of `axis`.

    Raises:
        ArgumentError: an axis of `axis` is longer.
    """
    gone = shapes.squeezed(shape, axis)
    kept = [at for at in range(len(shape)) if at not in gone]
    return tuple(shape[at] for at in kept), None if strides is None else tuple(strides[at] for at in kept)


def transposed(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, axes: tuple[int | Sequence[int] | None, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides with the axes in the order of the arguments of ``x.transpose(...)``.

    Raises:
        UnsupportedError: the result would not lie in rows at one distance.
    """
    order = shapes.permutation(len(shape), axes)
    fresh, moved = tuple(shape[at] for at in order), tuple(strides[at] for at in order)
    if layouts.rows_of(fresh, moved, itemsize) is None:
        raise UnsupportedError(
            f"an array of shape {shape} is not transposed to {fresh} without moving its elements.",
            reason="UNSUPPORTED",
            fix="have the kernel take its indices in the other order, transpose in a kernel, or on the host: "
            "gpu.asarray(x.get().transpose(...)).",
        )
    return fresh, moved


def reinterpreted(
    shape: tuple[int, ...], strides: Strides, since: Dtype, dtype: Any, *, dense: bool
) -> tuple[tuple[int, ...], Dtype, Strides]:
    """Shape, dtype and strides of the same bytes as another dtype.

    Raises:
        ArgumentError: the last axis is not contiguous, or its bytes do not divide into the dtype.
    """
    fresh = shapes.reinterpreted(dtype)
    if fresh.itemsize == since.itemsize:
        return shape, fresh, strides
    if not shape or shape[-1] * since.itemsize % fresh.itemsize:
        raise ArgumentError(
            f"the last axis of shape {shape} of {since} does not divide into {fresh}.",
            reason="INVALID_ARGUMENT",
            fix="reshape or slice first.",
        )
    if dense:
        strides = None
    if strides is not None:
        if strides[-1] != since.itemsize:
            raise ArgumentError(
                f"the last axis of this view has stride {strides[-1]}; it is not contiguous.",
                reason="INVALID_ARGUMENT",
                fix="x.copy().view(...) makes a contiguous copy first.",
            )
        strides = (*strides[:-1], fresh.itemsize)
    return (*shape[:-1], shape[-1] * since.itemsize // fresh.itemsize), fresh, strides


def element(array: A, index: tuple[SupportsIndex, ...]) -> A:
    """The view of one element: the only one, the one at a flat index, or the one at an index for each axis.

    Raises:
        ValueError: no index was given and there are several elements, or too few or too many indices.
        IndexError: the index is out of bounds.
    """
    if not index:
        if array.size != 1:
            raise ValueError(f"the array has {array.size} elements, and item() gives the only one: say which")
        return array
    at = tuple(operator.index(each) for each in index)
    if len(at) == 1:
        if not -array.size <= at[0] < array.size:
            raise IndexError(f"index {at[0]} is out of bounds for size {array.size}")
        at = shapes.unraveled(at[0] % array.size, array.shape)
    if len(at) != array.ndim:
        raise ValueError(f"item() takes one index, or one for each of {array.ndim} axes; it was given {len(at)}")
    return array[at]
