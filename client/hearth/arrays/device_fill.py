"""Fills of arrays with one value, by the daemon's fill command and copies on the device that repeat its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth import base_stream as streams
from hearth import dtypes, shapes
from hearth import lazy_numpy as np
from hearth.arrays import host_copy
from hearth.codec import encode
from hearth.dtypes import Element
from hearth_proto.layouts import RowLayout, StrideLayout

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike
    from hearth.session.attachment import Attachment

PATTERNS = (1, 2, 4, 8, 16)
"""Sizes in bytes of the patterns that the daemon's fill command can repeat."""


def fill(array: host_copy.HostCopied, value: Any, stream: BaseStream | None) -> None:
    """Sets every element to one value; see `BaseArray.fill`.

    Args:
        array: The array.
        value: The value.
        stream: Stream that orders the fill; None: the current one.

    Raises:
        ArgumentError: `value` is more than one value.
        DtypeError: `value` cannot be converted to the array's dtype.
    """
    repeat(array, pattern_of(array, value), stream)


def repeat(array: host_copy.HostCopied, pattern: bytes, stream: BaseStream | None) -> None:
    """Sets every element to the same bytes.

    Args:
        array: The array.
        pattern: The bytes of one element.
        stream: Stream that orders the fill; None: the current one.
    """
    if array._nbytes == 0:
        return
    repeated = pattern if any(pattern) else b"\0"
    rows, start, first_only = array._rows, array._offset, False
    if isinstance(rows, StrideLayout):
        from hearth.arrays import strided_copy

        strides = array.strides
        axes = strided_copy.common_axes(array._shape, strides, strides, array.itemsize)
        single_copy = axes.single_copy
        first_only = single_copy is None
        if single_copy is None:
            strided_copy.check_writable(array)
            rows = RowLayout(0, array.itemsize)
        else:
            start += single_copy.destination_offset
            rows = RowLayout(0, single_copy.width, single_copy.rows, single_copy.destination_pitch)
    if len(repeated) not in PATTERNS or start % len(repeated):
        host = np.full(array._shape, np.frombuffer(pattern, array.dtype)[0], array.dtype)
        host_copy.write(array, host, stream, None)
        return
    attachment = array._usable()
    handle = streams.resolve_captured(stream, array._connection, attachment)
    width = array._nbytes if rows is None else rows.width
    attachment.submit(encode.fill(handle, array._memory.handle, start, width, repeated))
    if first_only:
        _repeat_first_element(array, stream)
    elif rows is not None:
        _repeat_row(array, rows, start - array._offset, handle, attachment)


def pattern_of(array: ArrayLike, value: Any) -> bytes:
    """Returns the bytes of one element.

    Args:
        array: The array, whose dtype the value is converted to.
        value: The value.

    Raises:
        ArgumentError: `value` is more than one value.
        DtypeError: `value` cannot be converted to the array's dtype.
    """
    pattern = dtypes.pattern(value, array._dtype) if isinstance(array._dtype, Element) else None
    return shapes.element(value, array.dtype).tobytes() if pattern is None else pattern


def _repeat_first_element(array: ArrayLike, stream: BaseStream | None) -> None:
    """Launches the kernel that copies the first element to all elements, itself included."""
    from hearth.arrays import strided_copy

    axes = strided_copy.common_axes(array._shape, array.strides, (0,) * len(array._shape), array.itemsize)
    strided_copy.launch(array, array, axes, stream)


def _repeat_row(array: ArrayLike, rows: RowLayout, start: int, handle: int, attachment: Attachment) -> None:
    """Copies the first row, which begins `start` bytes after the array's first element, to all other rows."""
    from hearth.arrays import strided, strided_copy

    for region in strided.doublings(rows):
        shifted = region._replace(
            destination_offset=region.destination_offset + start, source_offset=region.source_offset + start
        )
        attachment.submit(strided_copy.command(handle, array, array, shifted))
