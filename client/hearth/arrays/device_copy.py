"""Copies between arrays of one session: on one device, or to another device as sends and receives of the pair."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from hearth import base_stream as streams
from hearth.arrays import strided, strided_copy
from hearth.arrays.allocation import allocate
from hearth.errors import ArgumentError, UnsupportedError
from hearth.session.collective_order import sorted_order, submit_in_order
from hearth_proto import layouts
from hearth_proto.collectives import ITEM_SIZES, MAX_COPY
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    import numpy as np

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike, DeviceContext

A = TypeVar("A", bound="ArrayLike")


def copy_into(destination: ArrayLike, source: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array into another one, through a temporary copy if they overlap; see `BaseArray.copy_from`.

    Args:
        destination: The destination.
        source: The source, of the same shape and dtype.
        stream: Stream of the destination's device; None: the current one.

    Raises:
        UnsupportedError: The arrays belong to different sessions.
        ArgumentError: The shape or dtype differs.
    """
    if source._device._node._session is not destination._device._node._session:
        raise UnsupportedError(
            "the arrays belong to different sessions.",
            fix="copy through the host, x.set(y.get()), or use a hearth.Group over both devices: broadcast, "
            "send and recv.",
        )
    if source._shape != destination._shape or (
        source._dtype is not destination._dtype and source.dtype != destination.dtype
    ):
        raise ArgumentError(
            f"{source!r} cannot be copied into {destination!r}.",
            fix="use reshape or view, so that shape and dtype are the same.",
        )
    attachment = destination._usable()
    source._usable()
    if destination.nbytes == 0:
        return
    if destination._memory is source._memory and overlap(destination, source):
        if destination._offset == source._offset and destination.strides == source.strides:
            return
        source = source.copy(stream)
    if source._connection is not destination._connection:
        copy_between(destination, source, stream)
        return
    if isinstance(destination._rows, layouts.StrideLayout) or isinstance(source._rows, layouts.StrideLayout):
        strided_copy.copy(destination, source, stream)
        return
    handle = streams.resolve_captured(stream, destination._connection, attachment)
    for region in strided.copies_between(destination._as_rows(), source._as_rows()):
        attachment.submit(strided_copy.command(handle, destination, source, region))


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


def copy_between(destination: ArrayLike, source: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array to another device of its session.

    Args:
        destination: The destination, of the same shape and dtype; not empty.
        source: The source. Its device's current stream is used there.
        stream: Stream of the destination's device; None: the current one.

    Raises:
        LaunchError: One of the streams is being recorded in a graph.
    """
    dense_source = source if source._rows is None else source.copy()
    dense_destination: ArrayLike = (
        destination
        if destination._rows is None
        else destination._device.empty(destination.shape, destination.dtype, stream)
    )
    dtype, count = wire_elements(dense_source, dense_source.size)
    most = MAX_COPY // ITEM_SIZES[dtype]
    for first in range(0, count, most):
        _copy_elements(dense_destination, dense_source, stream, dtype, first, min(most, count - first))
    if dense_destination is not destination:
        destination.copy_from(dense_destination, stream)


def _copy_elements(
    dense_destination: ArrayLike, dense_source: ArrayLike, stream: BaseStream | None, dtype: str, first: int, count: int
) -> None:
    """Copies `count` elements of the dtype from `first` on, as one operation of the two devices."""
    source_connection, destination_connection = dense_source._connection, dense_destination._connection
    order = sorted_order([source_connection.ordinal, destination_connection.ordinal])
    start = first * ITEM_SIZES[dtype]
    commands = []
    for peer, array, on in (
        (1, dense_source, streams.current(source_connection)),
        (0, dense_destination, stream or streams.current(destination_connection)),
    ):
        attachment = array._usable()
        handle = streams.resolve_for_collective(on, array._connection, attachment, "a copy between devices")
        command = commands_pb2.Command(stream=handle)
        command.collective.devices.extend(
            (source_connection.ordinal, destination_connection.ordinal)[member] for member in order.members
        )
        operation = command.collective.operations.add(count=count, dtype=dtype, peer=order.rank(peer))
        if array is dense_source:
            operation.kind = commands_pb2.COLLECTIVE_KIND_SEND
            operation.source, operation.source_offset = array._memory.handle, array._offset + start
        else:
            operation.kind = commands_pb2.COLLECTIVE_KIND_RECV
            operation.destination, operation.destination_offset = array._memory.handle, array._offset + start
        commands.append((array._connection.sequence, attachment, command))
    submit_in_order(commands, order)


def wire_elements(array: ArrayLike, elements: int) -> tuple[str, int]:
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


def converts(source: np.dtype[Any], destination: np.dtype[Any]) -> bool:
    """Returns True if the device converts elements of dtype `source` to dtype `destination`."""
    from hearth.arrays import astype

    return astype.is_supported(source, destination)


def from_session(device: DeviceContext[A], obj: A, dtype: np.dtype[Any] | None, stream: BaseStream | None) -> A:
    """Copies an array of any device of the session to new memory on a device.

    Args:
        device: The device.
        obj: The array.
        dtype: Type of the elements, to which the device converts them; None: that of `obj`.
        stream: Stream of the copy; None: the current one.

    Returns:
        The copy.
    """
    if dtype is not None and dtype != obj.dtype:
        obj = obj.astype(dtype, stream if obj._connection is device._connection else None)
        if obj._connection is device._connection:
            return obj
    if obj._connection is device._connection:
        return obj.copy(stream)
    result = allocate(device, obj.shape, obj.dtype, stream)
    result.copy_from(obj, stream)
    return result
