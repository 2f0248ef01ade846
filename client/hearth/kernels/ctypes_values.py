"""Objects of ctypes that a kernel receives by value: their size and alignment in C, and the pointers in their types.

Structures that the program packs itself are `hearth.kernels.by_value.Struct`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_CODES = frozenset("?cbBhHiIlLqQfd")
"""Codes of the ctypes types that have the same representation on the device: no wide characters, `long double` or
pointers."""
_POINTERS = frozenset("PzZO")
"""Codes of the simple ctypes types that are pointers: `c_void_p`, `c_char_p`, `c_wchar_p` and `py_object`."""


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
