"""Structs that a kernel receives by value: their bytes, their alignment in C and their pointers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hearth.errors import LaunchError, LaunchTypeError
from hearth.kernels.arguments import ByValue
from hearth.session.memory import DeviceOperand


@dataclass(frozen=True)
class Struct(ByValue):
    """A struct passed by value.

    Args:
        data: Bytes of the struct, as an object with a buffer: bytes, or e.g. a NumPy structure, which are copied.
        align: Alignment in C, in bytes: a power of two.
        pointers: Device array, `pointer(...)` or None for the pointer at each offset, in bytes. The daemon writes its
            address over 8 bytes of `data`. None is a null pointer.

    Raises:
        LaunchError: The alignment is not a power of two.
        LaunchTypeError: `data` has no buffer; or a pointer lies outside of the struct or overlaps another one, or its
            target is not a device array.
    """

    data: bytes
    align: int = 8
    pointers: Mapping[int, DeviceOperand | None] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.align < 1 or self.align & (self.align - 1):
            raise LaunchError(
                f"the alignment of a struct is {self.align}; it must be a power of two.",
                fix="pass the value of alignof() in C.",
            )
        if type(self.data) is not bytes:
            object.__setattr__(self, "data", _bytes_of(self.data))
        if self.pointers:
            from hearth.kernels import pointers

            pointers.struct_of_fields(self.data, self.pointers)

    def tobytes(self) -> bytes:
        """Returns the bytes of the struct, as given."""
        return self.data


def _bytes_of(data: Any) -> bytes:
    """Returns a copy of the bytes of an object's buffer.

    Raises `LaunchTypeError` for an object without a buffer.
    """
    try:
        return memoryview(data).tobytes()
    except (TypeError, ValueError, BufferError) as error:
        raise LaunchTypeError(
            f"the data of a struct is a {type(data).__name__}, which has no bytes ({error}).",
            fix="pass bytes: a.tobytes() for an array, struct.pack(...) for numbers.",
        ) from None
