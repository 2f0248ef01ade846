"""Copies between arrays of one session: on one device, or to another device as one send and one receive."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from hearth import base_stream as streams
from hearth.arrays import strided, strided_copy
from hearth.arrays.allocation import allocate
from hearth.errors import ArgumentError, UnsupportedError
from hearth.session.collective_order import sorted_order, submit_in_order
from hearth_proto import layouts
from hearth_proto.collectives import ITEM_SIZES
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    import numpy as np

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike, DeviceContext

A = TypeVar("A", bound="ArrayLike")


def copy_into(to: ArrayLike, since: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array into another one, through a temporary copy if they overlap; see `BaseArray.copy_from`.

    Args:
        to: The destination.
        since: The source, of the same shape and dtype.
        stream: Stream of the destination's device; None: the current one.

    Raises:
        UnsupportedError: The arrays belong to different sessions.
        ArgumentError: The shape or dtype differs.
    """
    if since._device._node._session is not to._device._node._session:
        raise UnsupportedError(
            "the arrays belong to different sessions.",
            reason="UNSUPPORTED",
            fix="copy through the host, x.set(y.get()), or use a hearth.Group over both devices: broadcast, "
            "send and recv.",
        )
    if since._shape != to._shape or (since._dtype is not to._dtype and since.dtype != to.dtype):
        raise ArgumentError(
            f"{since!r} cannot be copied into {to!r}.",
            reason="INVALID_ARGUMENT",
            fix="use reshape or view, so that shape and dtype are the same.",
        )
    attachment = to._usable()
    since._usable()
    if to.nbytes == 0:
        return
    if to._memory is since._memory and overlap(to, since):
        if to._offset == since._offset and to.strides == since.strides:
            return
        since = since.copy(stream)
    if since._connection is not to._connection:
        copy_between(to, since, stream)
        return
    if isinstance(to._rows, layouts.StrideLayout) or isinstance(since._rows, layouts.StrideLayout):
        strided_copy.copy(to, since, stream)
        return
    handle = streams.resolve_captured(stream, to._connection, attachment)
    for move in strided.copies_between(to._as_rows(), since._as_rows()):
        attachment.submit(strided_copy.command(handle, to, since, move))


def overlap(first: ArrayLike, second: ArrayLike) -> bool:
    """Returns True if two arrays in one buffer may have a byte in common.

    Exact for rows; arrays of other strides count as overlapping if the ranges from their first to their last byte
    overlap.

    Args:
        first: An array.
        second: Another array in the same memory.
    """
    if not first.nbytes or not second.nbytes:
        return False
    if isinstance(first._rows, layouts.StrideLayout) or isinstance(second._rows, layouts.StrideLayout):
        (start, end), (other_start, other_end) = _range(first), _range(second)
        return start < other_end and other_start < end
    return layouts.overlap(
        first._as_rows()._replace(offset=first._offset), second._as_rows()._replace(offset=second._offset)
    )


def _range(array: ArrayLike) -> tuple[int, int]:
    """Returns the offsets of the array's lowest byte and after its highest byte in the buffer."""
    rows = array._rows
    if isinstance(rows, layouts.StrideLayout):
        return array._offset + rows.low, array._offset + rows.end
    return array._offset, array._offset + array._as_rows().end


def copy_between(to: ArrayLike, since: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array to another device of its session.

    Args:
        to: The destination, of the same shape and dtype; not empty.
        since: The source. Its device's current stream is used there.
        stream: Stream of the destination's device; None: the current one.

    Raises:
        LaunchError: One of the streams is being recorded in a graph.
    """
    source = since if since._rows is None else since.copy()
    target: ArrayLike = to if to._rows is None else to._device.empty(to.shape, to.dtype, stream)
    here, there = source._connection, target._connection
    order = sorted_order([here.ordinal, there.ordinal])
    dtype, count = moved(source, source.size)
    commands = []
    for peer, array, on in (1, source, streams.current(here)), (0, target, stream or streams.current(there)):
        attachment = array._usable()
        command = commands_pb2.Command(stream=streams.resolve_for_collective(on, array._connection, attachment))
        command.collective.devices.extend((here.ordinal, there.ordinal)[member] for member in order.members)
        operation = command.collective.operations.add(count=count, dtype=dtype, peer=order.rank(peer))
        if array is source:
            operation.kind = commands_pb2.COLLECTIVE_KIND_SEND
            operation.source, operation.source_offset = array._memory.handle, array._offset
        else:
            operation.kind = commands_pb2.COLLECTIVE_KIND_RECV
            operation.destination, operation.destination_offset = array._memory.handle, array._offset
        commands.append((array._connection.sequence, attachment, command))
    submit_in_order(commands, order)
    if target is not to:
        to.copy_from(target, stream)


def moved(array: ArrayLike, elements: int) -> tuple[str, int]:
    """Chooses the dtype with which elements are sent that are only moved.

    Args:
        array: The array.
        elements: Number of elements to send.

    Returns:
        Name of the dtype, which is ``"uint8"`` if collectives do not support the array's own, and number of elements of
        it.
    """
    name = name_of(array.dtype)
    return (name, elements) if name in ITEM_SIZES else ("uint8", elements * array.itemsize)


@lru_cache(64)
def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the dtype's name. Cached, because NumPy builds the name at each access."""
    return dtype.name


def converts(since: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Returns True if the device converts elements of dtype `since` to dtype `to`."""
    from hearth.arrays import astype

    return astype.known(since, to)


def from_session(device: DeviceContext[A], obj: A, wanted: np.dtype[Any] | None, stream: BaseStream | None) -> A:
    """Copies an array of any device of the session to new memory on a device.

    Args:
        device: The device.
        obj: The array.
        wanted: Type of the elements, to which the device converts them; None: that of `obj`.
        stream: Stream of the copy; None: the current one.

    Returns:
        The copy.
    """
    if wanted is not None and wanted != obj.dtype:
        obj = obj.astype(wanted, stream if obj._connection is device._connection else None)
        if obj._connection is device._connection:
            return obj
    if obj._connection is device._connection:
        return obj.copy(stream)
    fresh = allocate(device, obj.shape, obj.dtype, stream)
    fresh.copy_from(obj, stream)
    return fresh
