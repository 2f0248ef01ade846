"""Structs that a kernel receives by value: their bytes, their alignment in C and their pointers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hearth.errors import LaunchError
from hearth.kernels.arguments import ByValue
from hearth.session.memory import DeviceOperand


@dataclass(frozen=True)
class Struct(ByValue):
    """A struct passed by value.

    Args:
        data: Bytes of the struct.
        align: Alignment in C, in bytes: a power of two.
        pointers: Device array, `pointer(...)` or None for the pointer at each offset, in bytes. The daemon writes its
            address over 8 bytes of `data`. None is a null pointer.

    Raises:
        LaunchError: The alignment is not a power of two.
        LaunchTypeError: A pointer lies outside of the struct or overlaps another one, or its target is not a device
            array.
    """

    data: bytes
    align: int = 8
    pointers: Mapping[int, DeviceOperand | None] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.align < 1 or self.align & (self.align - 1):
            raise LaunchError(
                f"the alignment of a struct is {self.align}; it must be a power of two.",
                reason="LAUNCH_INVALID",
                fix="pass the value of alignof() in C.",
            )
        if self.pointers:
            from hearth.kernels import pointers

            pointers.struct_of_fields(bytes(self.data), self.pointers)

    def tobytes(self) -> bytes:
        """Returns the bytes of the struct, as given."""
        return bytes(self.data)
