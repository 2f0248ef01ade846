"""Allocation of device memory for new arrays, and the memory that the session holds.

Allocations are sent one way, so `OutOfMemoryError` is raised by the next call that waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from hearth import base_stream as streams
from hearth import shapes
from hearth.codec import encode
from hearth.session.memory import Memory
from hearth_proto import layouts
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.interfaces import DeviceContext
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult
    from hearth.types import MemoryUsage

A = TypeVar("A")


def allocate(
    device: DeviceContext[A],
    shape: tuple[int, ...],
    dtype: Dtype,
    on: BaseStream | None = None,
    *,
    pitched: bool = False,
) -> A:
    """Makes an array with arbitrary contents.

    Args:
        device: The device.
        shape: Elements along each axis.
        dtype: Type of the elements.
        on: Stream of the allocation; None: the current one.
        pitched: Pads the rows; see `BaseDevice.empty_pitched`.

    Returns:
        The new array.

    Raises:
        ArgumentError: The array is too large to be addressed.
        LaunchError: Launches are being prepared on the stream; or it is being captured, and the daemon is too old to
            allocate memory meanwhile.
    """
    size = shapes.bytes_of(shape, dtype)
    strides = None
    if pitched:
        strides, size = layouts.pitched(shape, dtype.itemsize)
    connection = device._connection
    attachment = connection.attachment()
    handle = connection.mint()
    attachment.submit(encode.allocate(streams.resolve_for_memory(on, connection, attachment), handle, size))
    assert attachment.space is not None
    return device._array_type(device, Memory(attachment.space, handle, size), 0, shape, dtype, strides)


def allocate_many(
    device: DeviceContext[A], specs: Sequence[tuple[tuple[int, ...], Dtype]], on: BaseStream | None = None
) -> list[A]:
    """Makes arrays with arbitrary contents in one allocation, which succeeds or fails as a whole.

    Args:
        device: The device.
        specs: (shape, dtype) of each array.
        on: Stream of the allocation; None: the current one.

    Returns:
        The new arrays, in the order of `specs`.

    Raises:
        ArgumentError: An array is too large to be addressed.
        LaunchError: Launches are being prepared on the stream; or it is being captured, and the daemon is too old to
            allocate memory meanwhile.
    """
    if not specs:
        return []
    connection = device._connection
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=streams.resolve_for_memory(on, connection, attachment))
    space = attachment.space
    assert space is not None
    for shape, dtype in specs:
        command.allocate.parts.add(buffer=connection.mint(), size=shapes.bytes_of(shape, dtype))
    attachment.submit(command)
    return [
        device._array_type(device, Memory(space, part.buffer, part.size), 0, shape, dtype)
        for part, (shape, dtype) in zip(command.allocate.parts, specs, strict=True)
    ]


@contextmanager
def persistent_memory(connection: Connection) -> Iterator[None]:
    """Keeps memory that is allocated in the block reserved for the session; see `hearth.Device.persistent_memory`.

    Args:
        connection: Connection to the device.
    """
    attachment = connection.attachment()
    attachment.submit(_mode(commands_pb2.ALLOCATION_MODE_PERSISTENT))
    try:
        yield
    finally:
        now = connection.attachment() if connection.refusal is None else None
        # a later process generation has no persistent window to close
        if now is not None and now.space is attachment.space:
            now.submit(_mode(commands_pb2.ALLOCATION_MODE_AUTO))


def request_usage(connection: Connection) -> PendingResult[MemoryUsage]:
    """Requests the memory that the session holds on the device, and the memory that is free.

    Args:
        connection: Connection to the device.
    """
    from hearth.types import MemoryUsage

    command = commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())
    return connection.request(command, lambda result: MemoryUsage.of(result.memory_usage))


def request_cleanup(connection: Connection) -> PendingResult[None]:
    """Requests that unused memory of the memory pools is returned to the device.

    Args:
        connection: Connection to the device.
    """
    command = commands_pb2.Command(memory_cleanup=commands_pb2.MemoryCleanup())
    return connection.request(command, lambda result: None)


def _mode(mode: commands_pb2.AllocationMode) -> commands_pb2.Command:
    command = commands_pb2.Command()
    command.set_allocation_mode.mode = mode
    return command
