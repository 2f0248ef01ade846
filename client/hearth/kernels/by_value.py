"""Structs and ctypes objects that a kernel receives by value, with their size and alignment in C."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hearth.errors import LaunchError
from hearth.kernels.arguments import ByValue
from hearth.session.memory import DeviceOperand

_CODES = frozenset("?cbBhHiIlLqQfd")
"""Codes of the ctypes types that have the same representation on the device: no wide characters, `long double` or
pointers."""
_POINTERS = frozenset("PzZO")
"""Codes of the simple ctypes types that are pointers: `c_void_p`, `c_char_p`, `c_wchar_p` and `py_object`."""


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


def size_and_alignment(arg: object) -> tuple[int, int] | None:
    """Returns size and alignment of a ctypes object in bytes; None if it cannot be passed by value.

    Numbers, structures and unions in this machine's byte order can be passed, if they contain no pointers: their
    addresses are those of this process.
    """
    kind: Any = type(arg)
    if isinstance(arg, ctypes._SimpleCData):
        native = getattr(kind, "__ctype_le__", kind) is kind
        passable = native and kind._type_ in _CODES
    else:
        passable = isinstance(arg, ctypes.Structure | ctypes.Union) and not hasattr(kind, "_swappedbytes_")
        passable = passable and not has_pointers(kind)
    return (ctypes.sizeof(kind), ctypes.alignment(kind)) if passable else None


@functools.cache
def has_pointers(kind: Any) -> bool:
    """Returns True if a ctypes type is a pointer, or a structure, union or array that contains one."""
    if issubclass(kind, ctypes._SimpleCData):
        return kind._type_ in _POINTERS
    if issubclass(kind, ctypes.Array):
        return has_pointers(kind._type_)
    if issubclass(kind, ctypes.Structure | ctypes.Union):
        fields = (field for base in kind.__mro__ for field in vars(base).get("_fields_", ()))
        return any(has_pointers(field[1]) for field in fields)
    return True  # POINTER(...) and functions
