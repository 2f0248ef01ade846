"""Copies between arrays of one session: on one device, or to another device as one send and one receive."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from hearth import base_stream as streams
from hearth.arrays import strided
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
    """Copies an array into another one; see `BaseArray.copy_from`.

    Args:
        to: The destination.
        since: The source, of the same shape and dtype.
        stream: Stream of the destination's device; None: the current one.

    Raises:
        UnsupportedError: The arrays belong to different sessions.
        ArgumentError: The shape or dtype differs, or the memory overlaps.
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
    target = to._as_rows()._replace(offset=to._offset)
    source = since._as_rows()._replace(offset=since._offset)
    if to._memory is since._memory and layouts.overlap(target, source):
        if target == source:
            return
        raise ArgumentError(
            f"the arrays overlap in memory: bytes {source} and {target}.",
            reason="INVALID_ARGUMENT",
            fix="copy from y.copy().",
        )
    attachment = to._usable()
    since._usable()
    if to.nbytes == 0:
        return
    if since._connection is not to._connection:
        copy_between(to, since, stream)
        return
    handle = streams.resolve(stream, to._connection, attachment)
    for move in strided.moves(to._as_rows(), since._as_rows()):
        attachment.submit(command(handle, to, since, move))


def command(stream: int, to: ArrayLike, since: ArrayLike, move: strided.StridedCopy) -> commands_pb2.Command:
    """Builds the command that copies part of an array to another array on the same device.

    Args:
        stream: Handle of the stream.
        to: The destination.
        since: The source.
        move: The rows to copy, relative to the starts of the two arrays.

    Returns:
        The command.
    """
    made = commands_pb2.Command(stream=stream)
    made.copy.destination = to._memory.handle
    made.copy.destination_offset = to._offset + move.to
    made.copy.source = since._memory.handle
    made.copy.source_offset = since._offset + move.since
    made.copy.size = move.width
    if move.rows > 1:
        made.copy.rows = move.rows
        made.copy.destination_pitch = move.to_pitch
        made.copy.source_pitch = move.since_pitch
    return made


def copy_between(to: ArrayLike, since: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array to another device of its session.

    Args:
        to: The destination, of the same shape and dtype; not empty.
        since: The source. Its device's current stream is used there.
        stream: Stream of the destination's device; None: the current one.

    Raises:
        LaunchError: One of the streams is being recorded in a graph.
    """
    source = since if since._as_rows().dense else since.copy()
    target: ArrayLike = to if to._as_rows().dense else to._device.empty(to.shape, to.dtype, stream)
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
