"""Checks and computations of shapes, dtypes and sizes, done before a command is sent."""

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
    """Converts an int, a sequence of ints or a NumPy array of integers with one axis to a shape.

    Raises `ArgumentError` for a negative axis, `DtypeError` for an axis that is not a whole number.
    """
    axes = axes_of(value)
    try:
        shape = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        raise DtypeError(
            f"shape {value!r} contains values that are not integers.",
            fix="use int(...) or //.",
        ) from None
    if any(axis < 0 for axis in shape):
        raise ArgumentError(f"shape {shape} has a negative axis.", fix="check how the shape is computed.")
    return shape


def axes_of(value: Any) -> Sequence[Any]:
    """Returns the entries of a sequence or of a NumPy array with one axis; any other object is the only entry."""
    if isinstance(value, Sequence):
        return value
    if np.is_imported() and isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value)
    return (value,)


def type_of(value: Any) -> Dtype:
    """Returns the type that `value` names, without an import of NumPy if possible.

    It is an `Element` if NumPy is not imported and a matching one exists, otherwise the result of `dtype_of`.
    """
    return (None if np.is_imported() else dtypes.named(value)) or dtype_of(value)


def type_of_value(value: Any) -> Dtype:
    """Returns the default type of an array with the single element `value`, which is NumPy's default."""
    element = None if np.is_imported() else dtypes.named(type(value))
    if element is None or dtypes.pattern(value, element) is None:  # an int beyond 64 bits has another type
        return np.asarray(value).dtype
    return element


def dtype_of(value: Any) -> np.dtype[Any]:
    """Returns the dtype of an array on a device, in native byte order; numbers have NumPy's own dtype of their type.

    Raises `DtypeError` as `host_dtype_of` does, and for a dtype with a shape, which NumPy adds to that of the array.
    """
    dtype = host_dtype_of(value)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        raise DtypeError(
            f"dtype {dtype} has a shape, {shape}, which belongs to the array.",
            fix=f"use the dtype {base}, and add {shape} to the end of the array's shape.",
        )
    if dtype.kind in "biufc":
        return np.dtype(dtype.type)  # `newbyteorder` makes another object, which NumPy does not call built-in
    native = dtype.newbyteorder("=")
    return dtype if dtype == native else native  # `isnative` disregards the byte order of fields with a shape


def host_dtype_of(value: Any) -> np.dtype[Any]:
    """Returns the dtype of a host array whose elements device memory can hold; it may have a shape, and any byte order.

    Raises `DtypeError` for other values, e.g. dtypes of Python objects.
    """
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError as error:
        ml_dtype = named(value) if isinstance(value, str) else None
        if ml_dtype is None:
            raise DtypeError(f"{value!r} is not a dtype ({error}).", fix=_fix(value)) from None
        dtype = ml_dtype
    if dtype.hasobject:
        raise DtypeError(
            f"dtype {dtype} contains Python objects, which cannot be stored in device memory.",
            fix="convert to numbers first, e.g. a.astype(np.float32); rows of unequal length must be padded.",
        )
    if dtype.itemsize == 0:
        raise DtypeError(f"dtype {dtype} has no size.", fix="specify its length, e.g. 'S16'.")
    return dtype


def _fix(value: Any) -> str:
    """Returns the fix for a value that is no dtype."""
    import re

    if isinstance(value, str) and re.fullmatch(_ML_DTYPE, value):
        return (
            "install the extra hearth-gpu[ml-dtypes] (in a clone: pip install '.[ml-dtypes]'), or the package: "
            "pip install ml-dtypes."
        )
    return "use a dtype of NumPy, e.g. np.float32."


def reinterpreted(value: Any) -> Dtype:
    """Returns a dtype with which the bytes of a device array can be viewed.

    Raises `DtypeError` as `dtype_of` does, and for a byte order other than this machine's, because a view converts
    nothing.
    """
    dtype = type_of(value)
    if isinstance(dtype, dtypes.Element):
        return dtype
    if host_dtype_of(value) != dtype:
        raise DtypeError(
            f"dtype {host_dtype_of(value)} has another byte order than the device.",
            fix="use the bytes, x.view(np.uint8), and convert on the host: x.get().view(dtype).",
        )
    return dtype


def named(name: str) -> np.dtype[Any] | None:
    """Returns a dtype of `ml_dtypes` (bfloat16, float8_e4m3fn, ...) by its name; None if it is not available.

    It is not available if that package has no such dtype, or is not installed.
    """
    import re  # imported here: rarely needed, and the import takes as long as a dozen modules

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


def check_range(lowest: int, highest: int, dtype: np.dtype[Any]) -> None:
    """Checks that a dtype can hold a range of integers; other dtypes than integers are not checked.

    NumPy 2 raises the same error for Python ints, NumPy 1 keeps the low bits of the value.

    Args:
        lowest: The lowest of the integers.
        highest: The highest of the integers.
        dtype: The dtype.

    Raises:
        OverflowError: `lowest` or `highest` is outside of the range of the integer `dtype`.
    """
    if dtype.kind not in "iu":
        return
    bits = 8 * dtype.itemsize
    low, high = (0, (1 << bits) - 1) if dtype.kind == "u" else (-1 << bits - 1, (1 << bits - 1) - 1)
    if lowest < low or highest > high:
        raise OverflowError(f"{lowest if lowest < low else highest} is outside of {dtype}'s range, {low} to {high}")


def element(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Converts a value to one element, for a fill.

    Args:
        value: A number, a tuple (of a structured dtype) or an array without axes.
        dtype: Type of the element.

    Returns:
        An array without axes.

    Raises:
        DtypeError: `value` cannot be converted.
        ArgumentError: `value` is an array with axes.
    """
    element = np.zeros((), dtype)
    try:
        shape = () if isinstance(value, tuple) and dtype.names is not None else np.shape(value)
        if not shape:
            if isinstance(value, int):
                check_range(value, value, dtype)
            element[()] = value  # NumPy's rule for one element, which refuses numbers out of range
            shape = element.shape
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise DtypeError(
            f"{value!r} cannot be converted to {dtype} ({error}).",
            fix="convert the value first, e.g. np.float32(value).",
        ) from None
    if shape:
        raise ArgumentError(
            f"fill takes a single value, not an array of shape {shape}.",
            fix="use x.set(np.broadcast_to(a, x.shape)).",
        )
    return element


def bytes_of(shape: tuple[int, ...], dtype: Dtype) -> int:
    """Computes the size of an array.

    Args:
        shape: Elements along each axis.
        dtype: Type of the elements.

    Returns:
        The size in bytes.

    Raises:
        ArgumentError: The size does not fit in 63 bits.
    """
    size = math.prod(shape) * dtype.itemsize
    if size > _MAX_BYTES:
        raise ArgumentError(
            f"shape {shape} of {dtype} takes {size} bytes, which exceeds the 63 bits of an address.",
            fix="check how the shape is computed.",
        )
    return size


def squeezed(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, axis: int | tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Computes the shape and strides without axes of length 1.

    Args:
        shape: Elements along each axis.
        strides: Strides in bytes; None: those of C order.
        axis: Axis or axes to remove, negative ones counted from the end; None: all of length 1.

    Returns:
        Shape and strides of the view.

    Raises:
        IndexError: There is no such axis.
        ArgumentError: A given axis is not of length 1.
    """
    if axis is None:
        removed = {at for at, length in enumerate(shape) if length == 1}
    else:
        removed = {_axis(at, len(shape)) for at in (axis if isinstance(axis, tuple) else (axis,))}
    longer = sorted(at for at in removed if shape[at] != 1)
    if longer:
        raise ArgumentError(
            f"axis {longer[0]} of shape {shape} has length {shape[longer[0]]}; only axes of length 1 can be removed.",
            fix="use squeeze() without arguments to remove all axes of length 1.",
        )
    remaining = [at for at in range(len(shape)) if at not in removed]
    return tuple(shape[at] for at in remaining), None if strides is None else tuple(strides[at] for at in remaining)


def permutation(axes: int, arguments: Sequence[Any]) -> tuple[int, ...]:
    """Determines the order of axes that the arguments of `transpose` describe.

    Args:
        axes: Number of axes of the array.
        arguments: The arguments of `transpose`: none or None to reverse the axes, one sequence, or one number for each
            axis.

    Returns:
        For each axis of the result, the axis of the array.

    Raises:
        ArgumentError: `arguments` does not name each axis once.
        IndexError: There is no such axis.
    """
    if len(arguments) == 1:
        arguments = () if arguments[0] is None else axes_of(arguments[0])
    if not arguments:
        return tuple(reversed(range(axes)))
    order = tuple(_axis(at, axes) for at in arguments)
    if sorted(order) != list(range(axes)):
        raise ArgumentError(
            f"{tuple(arguments)} does not list each of {axes} axes once.",
            fix="list every axis, e.g. transpose(0, 2, 1).",
        )
    return order


def swapped(axes: int, first: SupportsIndex, second: SupportsIndex) -> tuple[int, ...]:
    """Determines the order of axes after two of them change places.

    Args:
        axes: Number of axes of the array.
        first: An axis; a negative one is counted from the end.
        second: The other axis.

    Returns:
        For each axis of the result, the axis of the array.

    Raises:
        IndexError: There is no such axis.
    """
    order = list(range(axes))
    first_axis, second_axis = _axis(first, axes), _axis(second, axes)
    order[first_axis], order[second_axis] = second_axis, first_axis
    return tuple(order)


def moved(axes: int, source: Any, destination: Any) -> tuple[int, ...]:
    """Determines the order of axes after some of them move to other positions, as `numpy.moveaxis` does.

    Args:
        axes: Number of axes of the array.
        source: Axis or axes to move; negative ones are counted from the end.
        destination: New position of each of them.

    Returns:
        For each axis of the result, the axis of the array.

    Raises:
        IndexError: There is no such axis.
        ArgumentError: `source` and `destination` differ in length, or name an axis twice.
    """
    sources = [_axis(at, axes) for at in (source if isinstance(source, Sequence) else (source,))]
    positions = [_axis(at, axes) for at in (destination if isinstance(destination, Sequence) else (destination,))]
    if len(sources) != len(positions) or len(set(sources)) != len(sources) or len(set(positions)) != len(positions):
        raise ArgumentError(
            f"axes {source} cannot be moved to {destination}.",
            fix="name each axis once, and a separate position for each.",
        )
    order = [at for at in range(axes) if at not in sources]
    for position, at in sorted(zip(positions, sources, strict=True)):
        order.insert(position, at)
    return tuple(order)


def _axis(value: SupportsIndex, axes: int) -> int:
    at = operator.index(value)
    if not -axes <= at < axes:
        raise IndexError(f"axis {at} is out of bounds for an array with {axes} axes")
    return at % axes


def unraveled(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Converts a flat index to an index for each axis.

    Args:
        at: Flat index in C order.
        shape: Elements along each axis.

    Returns:
        The index of the same element along each axis.
    """
    index = []
    for axis in reversed(shape):
        at, index_on_axis = divmod(at, axis)
        index.append(index_on_axis)
    return tuple(reversed(index))


def reshaped(size: int, shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Computes the shape that `reshape` results in.

    Args:
        size: Number of elements of the array.
        shape: The requested shape; at most one axis may be -1, which is computed.

    Returns:
        The shape without an axis of -1.

    Raises:
        ArgumentError: The shape does not have `size` elements.
    """
    axes = [operator.index(axis) for axis in shape]
    product = math.prod(axis for axis in axes if axis != -1)
    if axes.count(-1) == 1 and product > 0 and size % product == 0:
        axes[axes.index(-1)] = size // product
    if any(axis < 0 for axis in axes) or math.prod(axes) != size:
        raise ArgumentError(
            f"an array of {size} elements cannot have shape {tuple(shape)}.",
            fix="use a shape whose product is the number of elements.",
        )
    return tuple(axes)


def cdiv(a: int, b: int) -> int:
    """Divides, and rounds the result up: the number of blocks of `b` threads that cover `a` elements.

    Args:
        a: Number of elements.
        b: Number of elements of a block, not 0.

    Returns:
        The number of blocks.

    Raises:
        ArgumentError: `b` is 0.
        DtypeError: An argument is not a whole number.
    """
    try:
        return -(-operator.index(a) // operator.index(b))
    except TypeError:
        raise DtypeError(
            f"cdiv({a!r}, {b!r}) has an argument that is not an integer.",
            fix="use int(...) or //.",
        ) from None
    except ZeroDivisionError:
        raise ArgumentError(f"cdiv({a}, 0) divides by 0.", fix="pass the number of elements of a block.") from None
