"""NumPy arrays in pinned memory, which devices of this host read and write directly. The names are those of cupyx."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Literal, SupportsIndex

import numpy as np

from hearth import shapes
from hearth.errors import ArgumentError
from hearth.transport import memory_segments
from hearth.transport.segment_pool import MIN_BYTES, pool

Order = Literal["C", "F"]
OrderLike = Literal["C", "F", "A", "K"]


def empty_pinned(shape: shapes.Shape, dtype: Any = float, order: Order = "C") -> np.ndarray[Any, Any]:
    """Makes a NumPy array with arbitrary contents that devices on this host copy from and to directly.

    For NumPy, for remote daemons and without a connection, it is an ordinary array. A copy between the array, or a
    C-contiguous part of it, and a device of this host (reached over the daemon's Unix socket) is one copy by the
    device: ``gpu.asarray(a)``, ``x.set(a)``, ``x.get(out=a)``, and the large inputs and outputs (`out=`) of a dispatch.
    The device page-locks the memory at its first use. Such uploads are asynchronous: see `Device.asarray`. Arrays below
    64 KiB, and all arrays on systems without memfd (macOS), lie in ordinary memory. In a graph, ``x.set(a)`` and
    ``x.get(out=a, blocking=False)`` with such an array, or a C-contiguous part of it, are repeated by each launch.

    The memory is reused for other pinned arrays when the array and all views of it no longer exist. It stays registered
    with every daemon that it was used with. A forked child process shares the memory, like any shared mapping: writes
    of each process are visible to the other. Neither process reuses memory that existed at the fork.

    Args:
        shape: Number of elements along each axis: an int or a sequence.
        dtype: Type of the elements; float64 by default.
        order: ``"C"`` (row-major) or ``"F"`` (column-major).

    Returns:
        The new array.

    Raises:
        ArgumentError: The shape or the order is invalid.
        DtypeError: Devices do not support that element type.
        MemoryError: There is not enough memory.
    """
    return _make(shapes.shape_of(shape), dtype, _order(order, "CF"))


def zeros_pinned(shape: shapes.Shape, dtype: Any = float, order: Order = "C") -> np.ndarray[Any, Any]:
    """Makes an array of zeros in pinned memory; otherwise like `empty_pinned`.

    Args:
        shape: Number of elements along each axis: an int or a sequence.
        dtype: Type of the elements; float64 by default.
        order: ``"C"`` (row-major) or ``"F"`` (column-major).

    Returns:
        The new array.

    Raises:
        ArgumentError: The shape or the order is invalid.
        DtypeError: Devices do not support that element type.
        MemoryError: There is not enough memory.
    """
    return _make(shapes.shape_of(shape), dtype, _order(order, "CF"), zeros=True)


def empty_like_pinned(
    a: Any, dtype: Any = None, order: OrderLike = "K", subok: bool | None = None, shape: shapes.Shape | None = None
) -> np.ndarray[Any, Any]:
    """Makes an array in pinned memory with the shape and dtype of another; otherwise like `empty_pinned`.

    Args:
        a: A NumPy array or a device array.
        dtype: Type of the elements; None: that of `a`.
        order: ``"C"``, ``"F"``, or ``"A"`` and ``"K"``: the layout of `a`, as in NumPy.
        subok: Ignored, as in cupyx: the result is a plain `numpy.ndarray`.
        shape: Number of elements along each axis; None: the shape of `a`.

    Returns:
        The new array.

    Raises:
        ArgumentError: The shape or the order is invalid.
        DtypeError: Devices do not support that element type.
        MemoryError: There is not enough memory.
    """
    return _like(a, dtype, order, shape, zeros=False)


def zeros_like_pinned(
    a: Any, dtype: Any = None, order: OrderLike = "K", subok: bool | None = None, shape: shapes.Shape | None = None
) -> np.ndarray[Any, Any]:
    """Makes an array of zeros in pinned memory with the shape and dtype of another.

    Args:
        a: A NumPy array or a device array.
        dtype: Type of the elements; None: that of `a`.
        order: ``"C"``, ``"F"``, or ``"A"`` and ``"K"``: the layout of `a`, as in NumPy.
        subok: Ignored, as in cupyx: the result is a plain `numpy.ndarray`.
        shape: Number of elements along each axis; None: the shape of `a`.

    Returns:
        The new array.

    Raises:
        ArgumentError: The shape or the order is invalid.
        DtypeError: Devices do not support that element type.
        MemoryError: There is not enough memory.
    """
    return _like(a, dtype, order, shape, zeros=True)


def _like(a: Any, dtype: Any, order: str, shape: shapes.Shape | None, *, zeros: bool) -> np.ndarray[Any, Any]:
    order = _order(order, "CFAK")
    result_dtype = a.dtype if dtype is None else dtype
    if isinstance(a, np.ndarray):
        result_shape = None if shape is None else shapes.shape_of(shape)
        # NumPy determines the order of the axes from an array of bytes, which are never touched.
        model = np.empty_like(a, np.uint8, order, subok=False, shape=result_shape)  # type: ignore[call-overload]
        return _make(model.shape, result_dtype, "C", model.strides, zeros=zeros)
    return _make(
        shapes.shape_of(a.shape if shape is None else shape), result_dtype, "F" if order == "F" else "C", zeros=zeros
    )


def _make(
    shape: tuple[int, ...],
    dtype: Any,
    order: str,
    element_strides: tuple[SupportsIndex, ...] | None = None,
    *,
    zeros: bool = False,
) -> np.ndarray[Any, Any]:
    """Makes a pinned array. `element_strides` are its strides in elements; None: it is contiguous in `order`."""
    element_type = shapes.host_dtype_of(dtype)
    size = shapes.bytes_of(shape, element_type)
    strides = (
        None if element_strides is None else tuple(int(stride) * element_type.itemsize for stride in element_strides)
    )
    lease = None
    if size >= MIN_BYTES and memory_segments.possible():
        with contextlib.suppress(OSError):  # no descriptor or no memory: then NumPy raises its usual MemoryError
            lease = pool.lease(size)
    memory: np.ndarray[Any, Any] = np.empty(size, np.uint8) if lease is None else np.asarray(lease)[:size]
    if zeros and (lease is None or not lease.is_new):
        memory.fill(0)
    if not math.prod(shape):
        return np.empty(shape, element_type, order)  # type: ignore[call-overload,no-any-return]
    return np.ndarray(shape, element_type, memory, strides=strides, order="F" if order == "F" else "C")


def _order(order: str, allowed: str) -> str:
    if not isinstance(order, str) or order not in allowed or len(order) != 1:
        raise ArgumentError(
            f"order is {order!r}, which is not supported.",
            fix=f"use one of {', '.join(map(repr, allowed))}.",
        )
    return order
