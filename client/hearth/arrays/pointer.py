"""Pointers to device arrays, for structs and arrays that contain addresses."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, LaunchTypeError
from hearth.session.memory import DeviceOperand


class Pointer(DeviceOperand):
    """The address of a byte of a device array; see `pointer`."""

    __slots__ = ("_connection", "array", "offset")

    def __init__(self, array: Any, offset: int) -> None:
        self.array = array
        self.offset = offset
        self._memory = array._memory
        self._offset = array._offset + offset
        self._connection = array._connection

    @property
    def durable(self) -> bool:
        """True if the array is restored after a loss of the device."""
        return bool(self.array.durable)

    def __repr__(self) -> str:
        return f"pointer({self.array!r}, {self.offset})"


def pointer(array: DeviceOperand, offset: SupportsIndex = 0) -> DeviceOperand:
    """Returns the address of a device array, or of a byte within it.

    The value stands for the pointer in a struct that is passed by value, and is a kernel argument itself. The client
    does not know the address: the daemon writes it when the kernel is launched.

    Args:
        array: A device array, which may be marked with `read_only`, or another pointer.
        offset: Bytes from the array's first element, from 0 to the end of the array. To count elements, use a view:
            ``hearth.pointer(x[4:])``.

    Returns:
        The pointer, which is marked with `read_only` if `array` is.

    Raises:
        ArgumentError: `offset` is negative or beyond the end of the array (reason ``OUT_OF_BOUNDS``).
        LaunchTypeError: `array` is not a device array, or `offset` is no integer.
    """
    if isinstance(array, ReadOnly):
        return ReadOnly(pointer(array.array, offset))
    if not is_address(array):
        raise LaunchTypeError(
            f"pointer takes a device array, not {array!r} ({type(array).__name__}).",
            reason="LAUNCH_INVALID",
            fix="upload the data with x = gpu.asarray(...), and use hearth.pointer(x).",
        )
    try:
        start = operator.index(offset)
    except TypeError:
        raise LaunchTypeError(
            f"the offset of a pointer is {offset!r} ({type(offset).__name__}); it must be an integer.",
            reason="LAUNCH_INVALID",
            fix="pass a number of bytes.",
        ) from None
    if isinstance(array, Pointer):
        return pointer(array.array, array.offset + start)
    size = _extent(array)
    if not 0 <= start <= size:
        raise ArgumentError(
            f"the pointer starts at byte {start} of {array!r}, which has {size} bytes.",
            reason="OUT_OF_BOUNDS",
            fix=f"pass an offset in bytes from 0 to {size}; for an element use a view, e.g. hearth.pointer(x[4:]).",
        )
    return Pointer(array, start)


def is_address(value: object) -> bool:
    """Returns True for an operand that stands for an address, and not for a tensor map."""
    return isinstance(value, DeviceOperand) and value._passed == DeviceOperand._passed and hasattr(value, "_connection")


def _extent(array: Any) -> int:
    """Returns the bytes from the first element of an array to the end of its last one."""
    rows = array._rows
    return int(array.nbytes if rows is None else rows.end)
