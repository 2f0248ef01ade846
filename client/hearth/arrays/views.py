"""Views of an array: the same memory with another shape, dtype or order of axes.

Pure functions of shape, strides in bytes and dtype; this module does not transfer or wait. Indexing is in `strided`.
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
    """Memory layout of an array, with NumPy's names."""

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
    """Returns the memory layout of an array."""
    transposed = layouts.rows_of(array.shape[::-1], array.strides[::-1], array.itemsize)
    return Flags(array._as_rows().dense, transposed is not None and transposed.dense)


def reshaped(rows: layouts.RowLayout, itemsize: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Computes the strides of an array that is viewed with another shape of the same size.

    Args:
        rows: The rows of the array.
        itemsize: Bytes of an element.
        shape: The new shape.

    Returns:
        Bytes from one element to the next along each axis.

    Raises:
        UnsupportedError: The shape would need a copy, as NumPy would make.
    """
    strides = strided.reshaped_strides(rows, itemsize, shape)
    if strides is None:
        raise UnsupportedError(
            f"rows of {rows.width} bytes at a distance of {rows.pitch} bytes cannot be reshaped to {shape} "
            "without a copy.",
            reason="UNSUPPORTED",
            fix="use x.copy().reshape(...), which makes a contiguous copy first.",
        )
    return strides


def squeezed(
    shape: tuple[int, ...], strides: Strides, axis: int | tuple[int, ...] | None
) -> tuple[tuple[int, ...], Strides]:
    """Computes the shape and strides without axes of length 1.

    Args:
        shape: Elements along each axis.
        strides: Strides in bytes; None: those of C order.
        axis: The axes to remove; None: all of length 1.

    Returns:
        Shape and strides of the view.

    Raises:
        ArgumentError: An axis in `axis` is longer than 1.
        IndexError: There is no such axis.
    """
    gone = shapes.squeezed(shape, axis)
    kept = [at for at in range(len(shape)) if at not in gone]
    return tuple(shape[at] for at in kept), None if strides is None else tuple(strides[at] for at in kept)


def transposed(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, axes: tuple[int | Sequence[int] | None, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Computes the shape and strides with the axes in another order.

    Args:
        shape: Elements along each axis.
        strides: Strides in bytes.
        itemsize: Bytes of an element.
        axes: The arguments of ``x.transpose(...)``.

    Returns:
        Shape and strides of the view.

    Raises:
        ArgumentError: `axes` does not name each axis once.
        UnsupportedError: The result would not lie in rows at a constant distance.
    """
    order = shapes.permutation(len(shape), axes)
    fresh, moved = tuple(shape[at] for at in order), tuple(strides[at] for at in order)
    if layouts.rows_of(fresh, moved, itemsize) is None:
        raise UnsupportedError(
            f"an array of shape {shape} cannot be transposed to {fresh} without moving its elements.",
            reason="UNSUPPORTED",
            fix="swap the indices in the kernel that uses the array, transpose in a kernel, or on the host: "
            "gpu.asarray(x.get().transpose(...)).",
        )
    return fresh, moved


def reinterpreted(
    shape: tuple[int, ...], strides: Strides, since: Dtype, dtype: Any, *, dense: bool
) -> tuple[tuple[int, ...], Dtype, Strides]:
    """Computes shape, dtype and strides of the same bytes as elements of another dtype.

    Args:
        shape: Elements along each axis.
        strides: Strides in bytes; None: those of C order.
        since: The present dtype.
        dtype: The new dtype.
        dense: The array is contiguous.

    Returns:
        Shape, dtype and strides of the view.

    Raises:
        ArgumentError: The last axis is not contiguous, or its bytes are not a multiple of the new element's size.
        DtypeError: No device has elements of that type.
    """
    fresh = shapes.reinterpreted(dtype)
    if fresh.itemsize == since.itemsize:
        return shape, fresh, strides
    if not shape or shape[-1] * since.itemsize % fresh.itemsize:
        raise ArgumentError(
            f"the last axis of shape {shape} of {since} cannot be divided into elements of {fresh}.",
            reason="INVALID_ARGUMENT",
            fix="reshape or slice first.",
        )
    if dense:
        strides = None
    if strides is not None:
        if strides[-1] != since.itemsize:
            raise ArgumentError(
                f"the last axis of this view is not contiguous: its stride is {strides[-1]} bytes.",
                reason="INVALID_ARGUMENT",
                fix="use x.copy().view(...), which makes a contiguous copy first.",
            )
        strides = (*strides[:-1], fresh.itemsize)
    return (*shape[:-1], shape[-1] * since.itemsize // fresh.itemsize), fresh, strides


def element(array: A, index: tuple[SupportsIndex, ...]) -> A:
    """Returns the view of one element.

    Args:
        array: The array.
        index: A flat index, or one index for each axis; empty: the only element.

    Returns:
        A view of one element.

    Raises:
        ValueError: No index was given and there are several elements, or the number of indices is wrong.
        IndexError: The index is out of bounds.
    """
    if not index:
        if array.size != 1:
            raise ValueError(f"item() without an index requires exactly one element; the array has {array.size}")
        return array
    at = tuple(operator.index(each) for each in index)
    if len(at) == 1:
        if not -array.size <= at[0] < array.size:
            raise IndexError(f"index {at[0]} is out of bounds for size {array.size}")
        at = shapes.unraveled(at[0] % array.size, array.shape)
    if len(at) != array.ndim:
        raise ValueError(f"item() takes one index, or one for each of {array.ndim} axes, not {len(at)}")
    return array[at]
