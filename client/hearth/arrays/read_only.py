"""Marks for arrays that a kernel only reads."""

from __future__ import annotations

from typing import Any

from hearth.errors import LaunchTypeError
from hearth.session.memory import DeviceOperand
from hearth_proto import launches


class ReadOnly(DeviceOperand):
    """An array that a kernel only reads; see `read_only`."""

    __slots__ = ("_connection", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        self._memory = array._memory
        self._offset = array._offset
        self._connection = array._connection

    def __repr__(self) -> str:
        return f"read_only({self.array!r})"


class ReadOnlyMap(ReadOnly):
    """A tensor map through which a kernel only loads."""

    __slots__ = ()

    _passed = (f"Q{launches.TENSOR_MAP_BYTES - 8}x", launches.TENSOR_MAP_BYTES, 64)


def read_only(array: DeviceOperand) -> ReadOnly:
    """Marks an array as an argument to which the kernel does not write.

    Launches on several streams may then read the array at the same time; without the mark, each such launch waits for
    the previous one.

    Args:
        array: A device array or a tensor map.

    Returns:
        The argument, to be passed to a kernel.

    Raises:
        LaunchTypeError: `array` is neither a device array nor a tensor map.
    """
    if isinstance(array, ReadOnly):
        return array
    if not isinstance(array, DeviceOperand) or not hasattr(array, "_connection"):
        raise LaunchTypeError(
            f"read_only takes a device array, not a {type(array).__name__}.",
            fix="upload it with gpu.asarray(...).",
        )
    return ReadOnly(array) if array._passed == DeviceOperand._passed else ReadOnlyMap(array)
