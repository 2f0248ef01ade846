"""Element types that are known without NumPy: those for which Python's buffers and `struct` have a code.

In a process that has not imported NumPy, a `DeviceArray` of such a type holds an `Element` instead of a dtype until its
dtype is read.
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
    """The type of an array's elements: a NumPy dtype, or an `Element` that represents one."""


class Element:
    """An element type that is known without NumPy.

    There is one instance of each type, so compare instances with ``is``.
    """

    __slots__ = ("code", "itemsize", "kind", "name", "str")

    def __init__(self, name: str, code: str, kind: str) -> None:
        self.name = name
        self.code = code
        """Format character of `struct` and `memoryview`."""
        self.kind = kind
        """NumPy's letter for the kind of type: b, i, u or f."""
        self.itemsize = struct.calcsize(code)
        self.str = f"{'<' if self.itemsize > 1 else '|'}{kind}{self.itemsize}"
        """Typestring in the format of `numpy.dtype.str`."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Element({self.name!r})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of this type. Imports NumPy; `np.dtype` accepts an `Element` because of this attribute."""
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
_BY_NAME: dict[object, Element] = {
    name: element for element in _ALL for name in (element.name, element.str, element.str[1:])
}
_BY_NAME |= {bool: _BY_NAME["bool"], int: _BY_NAME["int64"], float: _BY_NAME["float64"]}
_KINDS = {"?": "b", **dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"), "f": "f", "d": "f"}
"""Kind of type by the format code of a buffer; the buffer itself gives the size of an element."""


def named(value: object) -> Element | None:
    """Returns the element that `np.dtype(value)` is; None if it is no element.

    `value` may be an element, an element's name or a Python number type; for other objects, returns None.
    """
    if isinstance(value, Element):
        return value
    return _BY_NAME.get(value) if isinstance(value, str | type) else None


class Host(NamedTuple):
    """A C-contiguous buffer of this process, described as the array that NumPy would make of it."""

    data: memoryview
    """The bytes of the array."""
    shape: tuple[int, ...]
    element: Element


def host(obj: object) -> Host | None:
    """Returns the buffer of an object such as `array.array`, bytearray, memoryview or mmap.

    Returns None for an object without a buffer, for a buffer that only NumPy can interpret, and for `bytes`, because
    NumPy makes one string of them and not numbers.
    """
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
    """Returns the bytes of a buffer that is about to be filled.

    Args:
        buffer: A writable, contiguous buffer.
        size: Number of bytes that it must have.

    Returns:
        The buffer's memory as bytes.

    Raises:
        DtypeError: `buffer` has no buffer interface.
        ArgumentError: The buffer is read-only, not contiguous, or of another size.
    """
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise DtypeError(
            f"a {type(buffer).__name__} does not support the buffer protocol, so no data can be read into it.",
            fix="pass a bytearray(x.nbytes), or an array.array or a NumPy array of the same size.",
        ) from None
    if view.readonly or not view.c_contiguous or view.nbytes != size:
        problem = "read-only" if view.readonly else f"of {view.nbytes} bytes" if view.c_contiguous else "not contiguous"
        raise ArgumentError(
            f"the buffer is {problem}; it must be writable, contiguous and of {size} bytes.",
            fix="pass e.g. bytearray(x.nbytes), or a part of a larger buffer: memoryview(b)[:x.nbytes].",
        )
    try:
        return _bytes(view)
    except (TypeError, ValueError):  # a format that Python cannot cast, e.g. of records or ctypes structures
        import ctypes

        return memoryview((ctypes.c_char * size).from_buffer(buffer)).cast("B")  # type: ignore[arg-type]


def pattern(value: object, element: Element) -> bytes | None:
    """Packs a Python number as one element, without NumPy.

    Args:
        value: The number.
        element: Type of the element.

    Returns:
        The bytes of the element, little-endian; None if NumPy may convert `value` differently or may refuse it.
    """
    if not (type(value) is int or type(value) is bool or (type(value) is float and element.kind == "f")):
        return None
    try:
        return struct.pack(f"<{element.code}", value)
    except (struct.error, OverflowError):
        return None


def elements(data: memoryview, shape: Sequence[int], element: Element) -> Any:
    """Unpacks bytes as Python numbers.

    Args:
        data: The bytes of the elements, in C order.
        shape: Elements along each axis.
        element: Type of the elements.

    Returns:
        Nested lists of numbers; for a shape without axes, the number.
    """
    if not all(shape):
        return _empty(shape)
    return data.cast(element.code, tuple(shape)).tolist()  # type: ignore[call-overload]


def _empty(shape: Sequence[int]) -> list[Any]:
    """Returns the nested lists of a shape that has an axis of length 0, nested down to that axis."""
    return [] if not shape[0] else [_empty(shape[1:]) for _ in range(shape[0])]
