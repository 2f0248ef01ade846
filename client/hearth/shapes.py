"""Shapes, dtypes and sizes, checked before anything is sent."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import dtypes
from hearth import lazy_numpy as np
from hearth.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from hearth.dtypes import Dtype

Shape = SupportsIndex | Sequence[SupportsIndex]
_MAX_BYTES = 2**63 - 1
_ML_DTYPE = r"(b?float|b?complex|u?int)[0-9][0-9a-z_]{0,20}"


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


def type_of(value: Any) -> Dtype:
    """The type that `value` names: an `Element` if NumPy is not imported and one fits, else as by `dtype_of`."""
    return (None if np.here() else dtypes.named(value)) or dtype_of(value)


def type_of_value(value: Any) -> Dtype:
    """The type of an array made of `value` alone: NumPy's default for it."""
    found = None if np.here() else dtypes.named(type(value))
    if found is None or dtypes.pattern(value, found) is None:  # a longer number is of another type
        return np.asarray(value).dtype
    return found


def dtype_of(value: Any) -> np.dtype[Any]:
    """A dtype that device memory can hold, in native byte order. Raises `DtypeError` for Python objects."""
    try:
        dtype = np.dtype(value)
    except TypeError as error:
        found = named(value) if isinstance(value, str) else None
        if found is None:
            raise DtypeError(f"{value!r} is no dtype ({error}).", reason="INVALID_ARGUMENT", fix=_fix(value)) from None
        dtype = found
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


def _fix(value: Any) -> str:
    """Returns the fix for a value that is no dtype."""
    import re

    if isinstance(value, str) and re.fullmatch(_ML_DTYPE, value):
        return "install the package that has it: pip install ml-dtypes."
    return "use a dtype of NumPy, e.g. np.float32."


def reinterpreted(value: Any) -> Dtype:
    """A dtype that bytes on a device can be seen as. Raises `DtypeError` also for another byte order than this
    machine's: nothing is converted there."""
    dtype = type_of(value)
    if isinstance(dtype, dtypes.Element):
        return dtype
    if not (isinstance(value, str) and named(value)) and not np.dtype(value).isnative:
        raise DtypeError(
            f"dtype {np.dtype(value)} has another byte order than the device.",
            reason="INVALID_ARGUMENT",
            fix="see it as bytes, x.view(np.uint8), and convert on the host: x.get().view(dtype).",
        )
    return dtype


def named(name: str) -> np.dtype[Any] | None:
    """A dtype of `ml_dtypes` (bfloat16, float8_e4m3fn, ...) by its name, where that package is installed."""
    import re  # few need it, and it takes as long as a dozen modules

    if re.fullmatch(_ML_DTYPE, name) is None:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    kind = getattr(ml_dtypes, name, None)
    try:
        return np.dtype(kind) if isinstance(kind, type) and issubclass(kind, np.generic) else None
    except TypeError:
        return None


def element(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """`value` as one element of `dtype`. Raises `DtypeError` where it cannot be one."""
    try:
        element = np.asarray(value).astype(dtype) if not isinstance(value, int | tuple) else np.array(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DtypeError(f"{value!r} is no {dtype} ({error}).", reason="INVALID_ARGUMENT", fix="convert it.") from None
    if element.shape != ():
        raise ArgumentError(
            f"fill takes one value, not an array of shape {element.shape}.",
            reason="INVALID_ARGUMENT",
            fix="use x.set(np.broadcast_to(a, x.shape)).",
        )
    return element


def bytes_of(shape: tuple[int, ...], dtype: Dtype) -> int:
    """The size in bytes. Raises `ArgumentError` where it does not fit 63 bits."""
    size = math.prod(shape) * dtype.itemsize
    if size > _MAX_BYTES:
        raise ArgumentError(
            f"shape {shape} of {dtype} takes {size} bytes; addresses have 63 bits.",
            reason="INVALID_ARGUMENT",
            fix="check how the shape is computed.",
        )
    return size


def squeezed(shape: tuple[int, ...], axis: int | tuple[int, ...] | None) -> set[int]:
    """Which axes go. Raises IndexError for one that is not there, `ArgumentError` for one that is longer than 1."""
    if axis is None:
        return {at for at, length in enumerate(shape) if length == 1}
    gone = {_axis(at, len(shape)) for at in (axis if isinstance(axis, tuple) else (axis,))}
    longer = sorted(at for at in gone if shape[at] != 1)
    if longer:
        raise ArgumentError(
            f"axis {longer[0]} of shape {shape} is {shape[longer[0]]} long; only axes of 1 can be left out.",
            reason="INVALID_ARGUMENT",
            fix="squeeze() leaves out all that can be.",
        )
    return gone


def permutation(axes: int, given: Sequence[Any]) -> tuple[int, ...]:
    """The order of axes that `transpose` was given, in one of NumPy's ways. Raises `ArgumentError`."""
    if len(given) == 1 and (given[0] is None or isinstance(given[0], Sequence)):
        given = given[0] or ()
    if not given:
        return tuple(reversed(range(axes)))
    order = tuple(_axis(at, axes) for at in given)
    if sorted(order) != list(range(axes)):
        raise ArgumentError(
            f"{tuple(given)} does not name each of {axes} axes once.",
            reason="INVALID_ARGUMENT",
            fix="give every axis, e.g. transpose(0, 2, 1).",
        )
    return order


def _axis(value: SupportsIndex, axes: int) -> int:
    at = operator.index(value)
    if not -axes <= at < axes:
        raise IndexError(f"axis {at} is out of bounds for an array with {axes} axes")
    return at % axes


def unraveled(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the element at a flat index, C order."""
    index = []
    for axis in reversed(shape):
        at, along = divmod(at, axis)
        index.append(along)
    return tuple(reversed(index))


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
