"""Assignment ``x[index] = value`` of a number, a host array or a device array, converted and broadcast as in NumPy.

A value that is repeated along the first axes is sent once, and repeated by copies on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hearth import lazy_numpy as np
from hearth import shapes
from hearth.arrays import device_copy
from hearth.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from hearth.interfaces import ArrayLike

_WHOLE_BYTES = 64 << 10
"""Size in bytes up to which a broadcast value is sent whole, as one command instead of several."""


def assign(target: ArrayLike, value: Any) -> None:
    """Sets a view to a number or a host array.

    Args:
        target: The view.
        value: The value, converted and broadcast.

    Raises:
        ArgumentError: The shapes do not match.
        DtypeError: The value cannot be converted to the view's dtype.
    """
    is_scalar = isinstance(value, bool | int | float | complex | bytes) or (
        np.is_imported() and isinstance(value, np.generic)
    )
    if is_scalar or (isinstance(value, tuple) and target.dtype.names is not None):
        target.fill(value)
        return
    host = _cast(value, target.dtype)
    host = host.reshape(_without_leading(host.shape, target.shape))
    if host.size == 1 and host.ndim == 0:
        target.fill(host[()])
        return
    try:
        broadcast = np.broadcast_to(host, target.shape)
    except ValueError:
        raise _shapes_differ(host.shape, target.shape) from None
    if target.nbytes <= _WHOLE_BYTES or host.ndim == target.ndim:
        target.set(broadcast)
        return
    _spread(target, target.ndim - host.ndim, lambda block: block.set(np.broadcast_to(host, block.shape)))


def _cast(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        if isinstance(value, np.ndarray):
            return value.astype(dtype, copy=False)
        if dtype.kind in "iu":
            host = np.asarray(value)
            if host.size and host.dtype.kind in "iu":
                shapes.check_range(int(host.min()), int(host.max()), dtype)
        return np.asarray(value, dtype)  # directly: NumPy's default dtype of a list rounds large integers
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise DtypeError(
            f"a {type(value).__name__} cannot be assigned to elements of {dtype} ({error}).",
            fix="convert the value first, e.g. with np.asarray(value, dtype).",
        ) from None


def assign_array(target: ArrayLike, value: ArrayLike) -> None:
    """Sets a view to a device array.

    Args:
        target: The view.
        value: The array, converted and broadcast.

    Raises:
        ArgumentError: The shapes do not match.
        UnsupportedError: The array belongs to another session.
    """
    original = value
    while value.shape[:1] == (1,):  # leading axes of length 1 are broadcast
        value = value[0]
    if value.size == 1:
        value = value.reshape(())
    leading_axes = target.ndim - value.ndim
    if leading_axes < 0 or value.shape != target.shape[leading_axes:]:
        try:
            fits = np.broadcast_shapes(value.shape, target.shape) == target.shape
        except ValueError:
            fits = False
        if not fits:
            raise _shapes_differ(original.shape, target.shape)
    if value._dtype is not target._dtype and value.dtype != target.dtype:
        value = value.astype(target.dtype)
    if value._memory is target._memory and device_copy.overlap(target, value):
        if value.shape == target.shape and (target._offset, target.strides) == (value._offset, value.strides):
            return
        value = value.copy()
    if value.shape == target.shape[leading_axes:]:
        _spread(target, leading_axes, lambda block: block.copy_from(value))
    elif target.size:
        target.copy_from(_broadcast(value, target.shape))


def _broadcast(array: ArrayLike, shape: tuple[int, ...]) -> ArrayLike:
    """Returns a view that repeats an array along axes of length 1 and along further axes in front.

    Args:
        array: The array.
        shape: The shape of the view.

    Returns:
        The view, whose stride along a repeated axis is 0.
    """
    pairs = zip(array.strides, array.shape, strict=True)
    steps = tuple(0 if length == 1 else stride for stride, length in pairs)
    return array._view(0, shape, array._dtype, (0,) * (len(shape) - len(steps)) + steps)


def _spread(target: ArrayLike, leading_axes: int, write: Callable[[ArrayLike], None]) -> None:
    """Fills the first block of `target` by `write`, and copies it to all other blocks.

    A block has one index on each of the first `leading_axes` axes, and all elements of the other axes. Copies on the
    device repeat it; each copy doubles the part that is filled.
    """
    if not target.size:
        return
    write(target[(0,) * leading_axes])
    for axis in reversed(range(leading_axes)):
        blocks = target[(0,) * axis]
        done, count = 1, len(blocks)
        while done < count:
            more = min(done, count - done)
            blocks[done : done + more].copy_from(blocks[:more])
            done += more


def _without_leading(shape: tuple[int, ...], target_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Removes leading axes of length 1 that the target does not have, as NumPy does in an assignment."""
    while len(shape) > len(target_shape) and shape[0] == 1:
        shape = shape[1:]
    return shape


def _shapes_differ(shape: tuple[int, ...], target_shape: tuple[int, ...]) -> ArgumentError:
    return ArgumentError(
        f"an array of shape {shape} cannot be broadcast to shape {target_shape} of the assignment.",
        fix="reshape one of them; broadcasting repeats axes of length 1, and adds leading axes.",
    )
