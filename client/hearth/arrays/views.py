"""Views of an array: the same memory with another shape, dtype or order of axes.

Pure functions of shape, strides in bytes and dtype; this module does not transfer or wait. Indexing is in `strided`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from hearth import shapes
from hearth.arrays import strided
from hearth.errors import ArgumentError, UnsupportedError
from hearth_proto import layouts

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
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
    return Flags(array._rows is None, transposed is not None and transposed.dense)


def reshaped(array: A, shape: tuple[SupportsIndex, ...], order: str, copy: bool | None) -> A:
    """Reshapes an array; see `BaseArray.reshape`.

    Args:
        array: The array.
        shape: The new shape; one axis may be -1.
        order: ``"C"``, ``"F"`` or ``"A"``.
        copy: True: always a copy; False: never; None: if necessary.

    Returns:
        A view, or a contiguous copy.

    Raises:
        ArgumentError: The shape does not have the array's number of elements, or `order` is unknown.
        UnsupportedError: `copy` is False, and a copy would be necessary.
    """
    new_shape = shapes.reshaped(array.size, shape)
    if _in_f_order(array, order):
        transposed = reshaped(ordered(array, _reversed(array.ndim)), new_shape[::-1], "C", copy)
        return ordered(transposed, _reversed(len(new_shape)))
    if not copy:
        if array._rows is None:
            return array._view(0, new_shape, array._dtype)
        strides = strided.reshaped_strides(array.shape, array.strides, array.itemsize, new_shape)
        if strides is not None:
            return array._view(0, new_shape, array._dtype, strides)
    if copy is False:
        raise UnsupportedError(
            f"an array of shape {array.shape} with strides {array.strides} cannot be reshaped to {new_shape} without a "
            "copy.",
            fix="omit copy=False, and write the result back with x.copy_from(...) if it was changed.",
        )
    return array.copy()._view(0, new_shape, array._dtype)


def copied(array: A, stream: BaseStream | None, order: str) -> A:
    """Copies an array to new memory without gaps; see `BaseArray.copy`.

    Args:
        array: The array.
        stream: Stream that orders the copy; None: the current one.
        order: ``"C"``, ``"F"`` or ``"A"``.

    Returns:
        The new array.

    Raises:
        ArgumentError: `order` is unknown.
    """
    if not _in_f_order(array, order):
        return array.copy(stream)
    reverse = _reversed(array.ndim)
    return ordered(ordered(array, reverse).copy(stream), reverse)


def _in_f_order(array: ArrayLike, order: str) -> bool:
    """Returns True if `order` asks for Fortran's order of the array's elements; raises `ArgumentError` if unknown."""
    if order == "A":
        layout = flags(array)
        return layout.f_contiguous and not layout.c_contiguous
    if order not in ("C", "F"):
        raise ArgumentError(f"order={order!r} is not an order of elements.", fix='use "C", "F" or "A".')
    return order == "F"


def _reversed(axes: int) -> tuple[int, ...]:
    return tuple(reversed(range(axes)))


def ordered(array: A, order: tuple[int, ...]) -> A:
    """Returns a view with the axes in another order.

    Args:
        array: The array.
        order: For each axis of the view, the axis of the array.

    Returns:
        The view.
    """
    shape, strides = array.shape, array.strides
    return array._view(0, tuple(shape[at] for at in order), array._dtype, tuple(strides[at] for at in order))


def reinterpreted(
    shape: tuple[int, ...], strides: Strides, old_dtype: Dtype, dtype: Any, *, dense: bool
) -> tuple[tuple[int, ...], Dtype, Strides]:
    """Computes shape, dtype and strides of the same bytes as elements of another dtype.

    Args:
        shape: Elements along each axis.
        strides: Strides in bytes; None: those of C order.
        old_dtype: The present dtype.
        dtype: The new dtype.
        dense: The array is contiguous.

    Returns:
        Shape, dtype and strides of the view.

    Raises:
        ArgumentError: The last axis is not contiguous, or its bytes are not a multiple of the new element's size.
        DtypeError: No device has elements of that type.
    """
    new_dtype = shapes.reinterpreted(dtype)
    if new_dtype.itemsize == old_dtype.itemsize:
        return shape, new_dtype, strides
    if not shape or shape[-1] * old_dtype.itemsize % new_dtype.itemsize:
        raise ArgumentError(
            f"the last axis of shape {shape} of {old_dtype} cannot be divided into elements of {new_dtype}.",
            fix="reshape or slice first.",
        )
    if dense:
        strides = None
    if strides is not None:
        if strides[-1] != old_dtype.itemsize:
            raise ArgumentError(
                f"the last axis of this view is not contiguous: its stride is {strides[-1]} bytes.",
                fix="use x.copy().view(...), which makes a contiguous copy first.",
            )
        strides = (*strides[:-1], new_dtype.itemsize)
    return (*shape[:-1], shape[-1] * old_dtype.itemsize // new_dtype.itemsize), new_dtype, strides


def field(array: A, name: str) -> A:
    """Returns the view of one field of each element.

    Args:
        array: The array.
        name: Name of the field.

    Returns:
        A view with the strides of the array. The axes of a field with a shape follow those of the array.

    Raises:
        IndexError: The elements have no fields.
        ArgumentError: They have no field of that name.
    """
    fields = array.dtype.fields
    if fields is None:
        raise IndexError(
            f"{name!r} is not a valid index: it names a field, and elements of {array.dtype} have no fields; use "
            "integers, slices (`:`), an ellipsis (`...`) or None"
        )
    if name not in fields:
        raise ArgumentError(
            f"elements of {array.dtype} have no field {name!r}.",
            fix=f"use one of these fields: {', '.join(map(repr, fields))}.",
        )
    with_shape, offset = fields[name][:2]
    dtype, inner = shapes.dtype_of(with_shape.base), with_shape.shape
    strides = (*array.strides, *layouts.strides_of(inner, dtype.itemsize))
    return array._view(offset, array.shape + inner, dtype, strides)


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
    at = tuple(operator.index(entry) for entry in index)
    if len(at) == 1:
        if not -array.size <= at[0] < array.size:
            raise IndexError(f"index {at[0]} is out of bounds for size {array.size}")
        at = shapes.unraveled(at[0] % array.size, array.shape)
    if len(at) != array.ndim:
        raise ValueError(f"item() takes one index, or one for each of {array.ndim} axes, not {len(at)}")
    return array[at]
