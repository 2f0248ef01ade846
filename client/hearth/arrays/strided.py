"""Views that are not contiguous: resolution of an index, reshapes, and the copy commands that cover rows.

An array is contiguous, or consists of rows at a constant distance (`hearth_proto.layouts.RowLayout`), which one copy
command can transfer, or has other strides (`StrideLayout`), which `strided_copy` handles. All sizes are bytes, except
shapes and indices; this module does not transfer or wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hearth import lazy_numpy as np
from hearth.errors import UnsupportedError
from hearth.session.memory import DeviceOperand
from hearth_proto.layouts import RowLayout, strides_of


class Selection(NamedTuple):
    """A part of an array that begins `offset` bytes after the array's start."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class StridedCopy(NamedTuple):
    """A copy on the device of `rows` rows of `width` bytes; offsets are relative to the starts of the two arrays."""

    destination_offset: int
    source_offset: int
    width: int
    rows: int
    destination_pitch: int
    source_pitch: int


def select(shape: Sequence[int], strides: Sequence[int], index: Any) -> Selection:
    """Resolves a subscript by NumPy's basic indexing: integers, slices, `...` and None for a new axis.

    Args:
        shape: Elements along each axis.
        strides: Bytes from one element to the next along each axis.
        index: The subscript.

    Returns:
        Offset in bytes, shape and strides of the selected elements.

    Raises:
        IndexError: The index is out of range, as in NumPy.
        UnsupportedError: The index is a mask or a list of indices.
    """
    offset = 0
    lengths: list[int] = []
    steps: list[int] = []
    axis = 0
    for entry in _expanded(len(shape), index):
        if entry is None:
            lengths.append(1)
            steps.append(0)
            continue
        length, stride = shape[axis], strides[axis]
        if isinstance(entry, slice):
            chosen = range(*entry.indices(length))
            offset += chosen.start * stride if chosen else 0
            lengths.append(len(chosen))
            steps.append(stride * chosen.step)
        else:
            at = _integer(entry)
            if not -length <= at < length:
                raise IndexError(f"index {at} is out of bounds for axis {axis} with size {length}")
            offset += at % length * stride
        axis += 1
    return Selection(offset, tuple(lengths), tuple(steps))


def _expanded(axes: int, index: Any) -> list[Any]:
    """Returns the parts of an index, with one part for each axis, and None for each new axis."""
    entries = list(index) if isinstance(index, tuple) else [index]
    dots = [position for position, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    indexed = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if indexed > axes:
        raise IndexError(f"too many indices: the array has {axes} axes, {indexed} were indexed")
    full_slices = [slice(None)] * (axes - indexed)
    at = dots[0] if dots else len(entries)
    return entries[:at] + full_slices + entries[at + 1 :]


def _integer(entry: Any) -> int:
    if isinstance(entry, int) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, bool | np.bool_) or getattr(entry, "dtype", None) == np.bool_:
        raise _unsupported("a mask", "select from a copy on the host, x.get()[mask], or in a kernel.")
    if isinstance(entry, list) and any(isinstance(name, str) for name in entry):
        raise UnsupportedError(
            f"a list of fields, {entry}, cannot be expressed as a view of elements without gaps.",
            fix="select one field at a time, e.g. x['name'].",
        )
    if isinstance(entry, list | tuple | np.ndarray | DeviceOperand) and (not hasattr(entry, "ndim") or entry.ndim):
        raise _unsupported(
            "a list of indices",
            "take views one by one, select from a copy on the host, x.get()[indices], or gather in a kernel.",
        )
    try:
        return int(entry.__index__())
    except (AttributeError, TypeError):
        raise IndexError(
            f"{entry!r} is not a valid index: use integers, slices (`:`), an ellipsis (`...`) or None; the name of a "
            "field is a separate index, e.g. x['name'][0]"
        ) from None


def _unsupported(subject: str, fix: str) -> UnsupportedError:
    return UnsupportedError(
        f"{subject} cannot be expressed as a view, whose elements are at a constant distance along each axis.",
        fix=fix,
    )


def reshaped_strides(
    shape: Sequence[int], strides: Sequence[int], itemsize: int, new_shape: Sequence[int]
) -> tuple[int, ...] | None:
    """Computes the strides of an array that is reshaped without a copy, in C order of its elements.

    Groups of axes with the same number of elements are matched, as in NumPy. The axes of a group must have one common
    distance.

    Args:
        shape: Elements along each axis.
        strides: Bytes from one element to the next along each axis.
        itemsize: Bytes of an element.
        new_shape: The new shape, with the same number of elements.

    Returns:
        Bytes from one element to the next along each axis; None if a copy would be necessary.
    """
    if 0 in shape:
        return strides_of(new_shape, itemsize)
    axes = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length > 1]
    new_strides: list[int] = []  # strides of the new axes, innermost first
    distance = itemsize  # stride of a new axis of length 1 after all others
    remaining = list(new_shape)
    while axes:
        length, distance = axes.pop()
        while axes and axes[-1][1] == length * distance:
            length *= axes.pop()[0]
        while length > 1:
            if not remaining or length % remaining[-1]:
                return None
            axis = remaining.pop()
            new_strides.append(distance)
            distance *= axis
            length //= axis
    new_strides += [distance] * len(remaining)  # axes of length 1
    return tuple(reversed(new_strides))


def copies_between(destination: RowLayout, source: RowLayout) -> Iterator[StridedCopy]:
    """Generates the fewest copies that transfer an array to another one of the same shape and dtype.

    Args:
        destination: The rows of the destination.
        source: The rows of the source.

    Returns:
        The copies.
    """
    if destination.dense and source.dense:
        yield StridedCopy(destination.offset, source.offset, destination.size, 1, 0, 0)
    elif destination.dense or source.dense or destination.width == source.width:
        width, rows = (source if destination.dense else destination)[1:3]
        destination_pitch = width if destination.dense else destination.pitch
        source_pitch = width if source.dense else source.pitch
        yield StridedCopy(destination.offset, source.offset, width, rows, destination_pitch, source_pitch)
    elif destination.width < source.width:
        yield from _fine(destination, source)
    else:
        for region in _fine(source, destination):
            yield StridedCopy(
                region.source_offset,
                region.destination_offset,
                region.width,
                region.rows,
                region.source_pitch,
                region.destination_pitch,
            )


def _fine(destination: RowLayout, source: RowLayout) -> Iterator[StridedCopy]:
    """Generates the copies into rows that are shorter than those of the source, by a whole factor."""
    width = destination.width
    factor = source.width // width
    if source.rows <= factor:
        for row in range(source.rows):
            start = destination.offset + row * factor * destination.pitch
            yield StridedCopy(start, source.offset + row * source.pitch, width, factor, destination.pitch, width)
    else:
        for column in range(factor):
            yield StridedCopy(
                destination.offset + column * destination.pitch,
                source.offset + column * width,
                width,
                source.rows,
                factor * destination.pitch,
                source.pitch,
            )


def doublings(rows: RowLayout) -> Iterator[StridedCopy]:
    """Generates the copies that copy the first row to all other rows; each copy doubles the part that is filled."""
    done = 1
    while done < rows.rows:
        more = min(done, rows.rows - done)
        yield StridedCopy(done * rows.pitch, 0, rows.width, more, rows.pitch, rows.pitch)
        done += more
