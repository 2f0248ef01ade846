"""Types of elements that are known without NumPy: those that Python's own buffers and `struct` have a code for.

A `DeviceArray` of one, made in a process that has not imported NumPy, holds an `Element` in the place of a dtype until
the dtype is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np

    Dtype: TypeAlias = "np.dtype[Any] | Element"
    """The type of an array's elements, as arrays hold it."""


class Element:
    """A type of elements that is known without NumPy. A singleton for each type: to be compared by ``is``."""

    __slots__ = ("code", "itemsize", "kind", "name", "str")

    def __init__(self, name: str, code: str, kind: str) -> None:
        self.name = name
        self.code = code
        """Format character of `struct` and `memoryview`."""
        self.kind = kind
        """NumPy's letter: b, i, u or f."""
        self.itemsize = struct.calcsize(code)
        self.str = f"{'<' if self.itemsize > 1 else '|'}{kind}{self.itemsize}"
        """Typestring in the format of `numpy.dtype.str`."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Element({self.name!r})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of this name. Imports NumPy; `np.dtype` takes an `Element` through this attribute."""
        import numpy as np

        return np.dtype(self.name)


_ALL = [
    Element(name, code, kind)
    for name, code, kind in (
        ("bool", "?", "b"),
        ("int8", "b", "i"),
        ("int16", "h", "i"),
        ("int32", "i", "i"),
        ("int64", "q", "i"),
        ("uint8", "B", "u"),
        ("uint16", "H", "u"),
        ("uint32", "I", "u"),
        ("uint64", "Q", "u"),
        ("float32", "f", "f"),
        ("float64", "d", "f"),
    )
]
_BY_NAME: dict[object, Element] = {name: each for each in _ALL for name in (each.name, each.str, each.str[1:])}
_BY_NAME |= {bool: _BY_NAME["bool"], int: _BY_NAME["int64"], float: _BY_NAME["float64"]}
_KINDS = {"?": "b", **dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"), "f": "f", "d": "f"}
"""Kinds by the code of a buffer, which also gives the size of an element."""


def named(value: object) -> Element | None:
    """The element that `np.dtype(value)` is, if `value` is an element, its name or a Python number type; else None."""
    if isinstance(value, Element):
        return value
    return _BY_NAME.get(value) if isinstance(value, str | type) else None


class Host(NamedTuple):
    """A buffer of this process, C-contiguous, as the array that NumPy would see in it."""

    data: memoryview
    """Bytes of the array."""
    shape: tuple[int, ...]
    element: Element


def host(obj: object) -> Host | None:
    """An object's buffer (`array.array`, bytearray, memoryview, mmap); None for what has none, or one that only NumPy
    can read. Bytes are none either: to NumPy they are one string, not numbers."""
    if isinstance(obj, bytes):
        return None
    try:
        view = memoryview(obj)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return None
    code = view.format
    kind = _KINDS.get(code.removeprefix("@"))
    if kind is None or not view.c_contiguous:
        return None
    element = _BY_NAME.get(f"{kind}{view.itemsize}")
    if element is None:
        return None
    return Host(_bytes(view), tuple(view.shape or ()), element)


def _bytes(view: memoryview) -> memoryview:
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B")


def writable(buffer: object, size: int) -> memoryview:
    """The bytes of a buffer that `size` bytes are read into. Raises `DtypeError` for what has none, `ArgumentError` for
    one that cannot take them."""
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise DtypeError(
            f"a {type(buffer).__name__} has no buffer to read into.",
            reason="INVALID_ARGUMENT",
            fix="pass a bytearray(x.nbytes), an array.array or a NumPy array of its size.",
        ) from None
    if view.readonly or not view.c_contiguous or view.nbytes != size:
        wrong = "read-only" if view.readonly else f"of {view.nbytes} bytes" if view.c_contiguous else "not contiguous"
        raise ArgumentError(
            f"the buffer is {wrong}; what is read into is writable, contiguous and of {size} bytes.",
            reason="INVALID_ARGUMENT",
            fix="bytearray(x.nbytes) is; of a larger one pass a part, memoryview(b)[:x.nbytes].",
        )
    try:
        return _bytes(view)
    except (TypeError, ValueError):  # no format of Python's own: records, and what ctypes has
        import ctypes

        return memoryview((ctypes.c_char * size).from_buffer(buffer)).cast("B")  # type: ignore[arg-type]


def pattern(value: object, element: Element) -> bytes | None:
    """A Python number as one element, where NumPy makes the same of it; None where it may make something else of it, or
    refuses it."""
    if not (type(value) is int or type(value) is bool or (type(value) is float and element.kind == "f")):
        return None
    try:
        return struct.pack(f"<{element.code}", value)
    except (struct.error, OverflowError):
        return None


def elements(data: memoryview, shape: Sequence[int], element: Element) -> Any:
    """Bytes as nested lists of Python's numbers; without axes, as the number."""
    if not all(shape):
        return _empty(shape)
    return data.cast(element.code, tuple(shape)).tolist()  # type: ignore[call-overload]


def _empty(shape: Sequence[int]) -> list[Any]:
    """Lists around nothing: of a shape with an axis of 0, as far as that."""
    return [] if not shape[0] else [_empty(shape[1:]) for _ in range(shape[0])]
