"""Shapes, dtypes and sizes, checked before anything is sent."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from hearth.errors import ArgumentError, DtypeError

Shape = SupportsIndex | Sequence[SupportsIndex]
_MAX_BYTES = 2**63 - 1


def shape_of(value: Shape) -> tuple[int, ...]:
    """An int or a sequence of ints as a shape. Raises `ArgumentError` for a negative or fractional axis."""
    axes: Sequence[Any] = value if isinstance(value, Sequence) else (value,)
    try:
        shape = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        raise DtypeError(
            f"shape {value!r} is not made of whole numbers.", reason="INVALID_ARGUMENT", fix="use int(...) or //."
        ) from None
    if any(axis < 0 for axis in shape):
        raise ArgumentError(
            f"shape {shape} has a negative axis.", reason="INVALID_ARGUMENT", fix="check how it is computed."
        )
    return shape


def dtype_of(value: Any) -> np.dtype[Any]:
    """A dtype that device memory can hold, in native byte order. Raises `DtypeError` for Python objects."""
    try:
        dtype = np.dtype(value)
    except TypeError as error:
        raise DtypeError(f"{value!r} is no dtype ({error}).", reason="INVALID_ARGUMENT", fix="np.float32") from None
    if dtype.hasobject:
        raise DtypeError(
            f"dtype {dtype} holds Python objects, which cannot lie in device memory.",
            reason="INVALID_ARGUMENT",
            fix="convert to numbers first, e.g. a.astype(np.float32); rows of unequal length need padding.",
        )
    if dtype.itemsize == 0:
        raise DtypeError(f"dtype {dtype} has no size.", reason="INVALID_ARGUMENT", fix="give its length, e.g. 'S16'.")
    native: np.dtype[Any] = dtype if dtype.isnative else dtype.newbyteorder("=")
    return native


def bytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The size in bytes. Raises `ArgumentError` where it does not fit 63 bits."""
    size = math.prod(shape) * dtype.itemsize
    if size > _MAX_BYTES:
        raise ArgumentError(
            f"shape {shape} of {dtype} takes {size} bytes; addresses have 63 bits.",
            reason="INVALID_ARGUMENT",
            fix="check how the shape is computed.",
        )
    return size


def strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes from one element to the next along each axis, C order."""
    strides = []
    step = itemsize
    for axis in reversed(shape):
        strides.append(step)
        step *= max(axis, 1)
    return tuple(reversed(strides))


def reshaped(size: int, shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """`shape` for `size` elements, with at most one axis of -1 worked out. Raises `ArgumentError`."""
    axes = [operator.index(axis) for axis in shape]
    known = math.prod(axis for axis in axes if axis != -1)
    if axes.count(-1) == 1 and known > 0 and size % known == 0:
        axes[axes.index(-1)] = size // known
    if any(axis < 0 for axis in axes) or math.prod(axes) != size:
        raise ArgumentError(
            f"{size} elements do not make shape {tuple(shape)}.", reason="INVALID_ARGUMENT", fix="check the product."
        )
    return tuple(axes)
