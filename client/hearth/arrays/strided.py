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
from hearth_proto.layouts import RowLayout, contiguous


class Selection(NamedTuple):
    """A part of an array that begins `offset` bytes after the array's start."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class StridedCopy(NamedTuple):
    """A copy on the device of `rows` rows of `width` bytes; offsets are relative to the starts of the two arrays."""

    to: int
    since: int
    width: int
    rows: int
    to_pitch: int
    since_pitch: int


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
    for part in _expanded(len(shape), index):
        if part is None:
            lengths.append(1)
            steps.append(0)
            continue
        length, stride = shape[axis], strides[axis]
        if isinstance(part, slice):
            chosen = range(*part.indices(length))
            offset += chosen.start * stride if chosen else 0
            lengths.append(len(chosen))
            steps.append(stride * chosen.step)
        else:
            at = _integer(part)
            if not -length <= at < length:
                raise IndexError(f"index {at} is out of bounds for axis {axis} with size {length}")
            offset += at % length * stride
        axis += 1
    return Selection(offset, tuple(lengths), tuple(steps))


def _expanded(axes: int, index: Any) -> list[Any]:
    """Returns the parts of an index, with one part for each axis, and None for each new axis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [position for position, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    given = sum(part is not None and part is not Ellipsis for part in parts)
    if given > axes:
        raise IndexError(f"too many indices: the array has {axes} axes, {given} were indexed")
    rest = [slice(None)] * (axes - given)
    at = dots[0] if dots else len(parts)
    return parts[:at] + rest + parts[at + 1 :]


def _integer(part: Any) -> int:
    if isinstance(part, int) and not isinstance(part, bool):
        return part
    if isinstance(part, bool | np.bool_) or getattr(part, "dtype", None) == np.bool_:
        raise _unsupported("a mask", "select from a copy on the host, x.get()[mask], or in a kernel.")
    if isinstance(part, list | tuple | np.ndarray | DeviceOperand) and (not hasattr(part, "ndim") or part.ndim):
        raise _unsupported(
            "a list of indices",
            "take views one by one, select from a copy on the host, x.get()[indices], or gather in a kernel.",
        )
    try:
        return int(part.__index__())
    except (AttributeError, TypeError):
        raise IndexError(
            f"{part!r} is not a valid index: use integers, slices (`:`), an ellipsis (`...`) or None"
        ) from None


def _unsupported(what: str, fix: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} cannot be expressed as a view, whose elements are at a constant distance along each axis.",
        reason="UNSUPPORTED",
        fix=fix,
    )


def reshaped_strides(
    shape: Sequence[int], strides: Sequence[int], itemsize: int, fresh: Sequence[int]
) -> tuple[int, ...] | None:
    """Computes the strides of an array that is reshaped without a copy, in C order of its elements.

    Groups of axes with the same number of elements are matched, as in NumPy. The axes of a group must have one common
    distance.

    Args:
        shape: Elements along each axis.
        strides: Bytes from one element to the next along each axis.
        itemsize: Bytes of an element.
        fresh: The new shape, with the same number of elements.

    Returns:
        Bytes from one element to the next along each axis; None if a copy would be necessary.
    """
    if 0 in shape:
        return contiguous(fresh, itemsize).strides
    axes = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length > 1]
    made: list[int] = []  # strides of the new axes, innermost first
    step = itemsize  # stride of a new axis of length 1 behind all others
    left = list(fresh)
    while axes:
        length, step = axes.pop()
        while axes and axes[-1][1] == length * step:
            length *= axes.pop()[0]
        while length > 1:
            if not left or length % left[-1]:
                return None
            axis = left.pop()
            made.append(step)
            step *= axis
            length //= axis
    made += [step] * len(left)  # axes of length 1
    return tuple(reversed(made))


def copies_between(to: RowLayout, since: RowLayout) -> Iterator[StridedCopy]:
    """Generates the fewest copies that transfer an array to another one of the same shape and dtype.

    Args:
        to: The rows of the destination.
        since: The rows of the source.

    Returns:
        The copies.
    """
    if to.dense and since.dense:
        yield StridedCopy(to.offset, since.offset, to.size, 1, 0, 0)
    elif to.dense or since.dense or to.width == since.width:
        width, rows = (since if to.dense else to)[1:3]
        to_pitch = width if to.dense else to.pitch
        since_pitch = width if since.dense else since.pitch
        yield StridedCopy(to.offset, since.offset, width, rows, to_pitch, since_pitch)
    elif to.width < since.width:
        yield from _fine(to, since)
    else:
        for move in _fine(since, to):
            yield StridedCopy(move.since, move.to, move.width, move.rows, move.since_pitch, move.to_pitch)


def _fine(to: RowLayout, since: RowLayout) -> Iterator[StridedCopy]:
    """Generates the copies into rows that are shorter than those of the source, by a whole factor (`each`)."""
    width = to.width
    each = since.width // width
    if since.rows <= each:
        for row in range(since.rows):
            start = to.offset + row * each * to.pitch
            yield StridedCopy(start, since.offset + row * since.pitch, width, each, to.pitch, width)
    else:
        for column in range(each):
            yield StridedCopy(
                to.offset + column * to.pitch,
                since.offset + column * width,
                width,
                since.rows,
                each * to.pitch,
                since.pitch,
            )


def doublings(rows: RowLayout) -> Iterator[StridedCopy]:
    """Generates the copies that repeat the first row in all rows; each copy doubles the part that is filled."""
    done = 1
    while done < rows.rows:
        more = min(done, rows.rows - done)
        yield StridedCopy(done * rows.pitch, 0, rows.width, more, rows.pitch, rows.pitch)
        done += more
