"""Kernel arguments of ctypes types, passed by value with their size and alignment in C."""

from __future__ import annotations

import ctypes
from typing import Any

_CODES = frozenset("?cbBhHiIlLqQfd")
"""Codes of the ctypes types that have the same representation on the device: no wide characters, `long double` or
pointers."""


def size_and_alignment(arg: object) -> tuple[int, int] | None:
    """Returns size and alignment of a ctypes object in bytes; None if it cannot be passed by value.

    Numbers, structures and unions in this machine's byte order can be passed.
    """
    kind: Any = type(arg)
    if isinstance(arg, ctypes._SimpleCData):
        native = getattr(kind, "__ctype_le__", kind) is kind
        passable = native and kind._type_ in _CODES
    else:
        passable = isinstance(arg, ctypes.Structure | ctypes.Union) and not hasattr(kind, "_swappedbytes_")
    return (ctypes.sizeof(kind), ctypes.alignment(kind)) if passable else None
