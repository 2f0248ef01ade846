"""Durable arrays: after a loss of the device they are restored with the contents of their last complete copy.

The daemon keeps copies in its host's memory, taken by the device process at points of a stream. When a device process
is lost, its successor restores the arrays, under the same handles, before it serves any session; the client moves their
`Memory` to the new `Space`, so that the program can continue to use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hearth import base_stream as streams
from hearth.arrays.base_array import BaseArray
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.session.connection import Connection


def set_durable(connection: Connection, arrays: Sequence[Any], durable: bool, stream: BaseStream | None) -> None:
    """Makes arrays durable, or ends that; see `BaseDevice.durable`.

    Args:
        connection: The connection to the device.
        arrays: Arrays of the device; at least one.
        durable: False ends the durability.
        stream: Stream that orders the copy; None: the current one.

    Raises:
        ArgumentError: There is no array.
        DtypeError: An argument is no device array.
        UnsupportedError: An array belongs to another device or session.
    """
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=streams.resolve(stream, connection, attachment))
    for array in _checked(connection, arrays, "durable"):
        command.set_durable.buffers.append(array._memory.handle)
    command.set_durable.durable = durable
    durables = connection.durables
    for array in arrays:
        if durable:
            durables.add(array._memory)
        else:
            durables.discard(array._memory)
    attachment.submit(command)


def checkpoint(connection: Connection, arrays: Sequence[Any], stream: BaseStream | None) -> None:
    """Takes new copies of durable arrays; see `BaseDevice.checkpoint`.

    Args:
        connection: The connection to the device.
        arrays: Durable arrays of the device; none: all of the session.
        stream: Stream that orders the copies; None: the current one.

    Raises:
        ArgumentError: An array is not durable.
        DtypeError: An argument is no device array.
        UnsupportedError: An array belongs to another device or session.
    """
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=streams.resolve(stream, connection, attachment))
    command.checkpoint.SetInParent()
    for array in _checked(connection, arrays, "checkpoint") if arrays else ():
        if not array.durable:
            raise ArgumentError(f"{array!r} is not durable.", fix="make it durable first: gpu.durable(x).")
        command.checkpoint.buffers.append(array._memory.handle)
    attachment.submit(command)


def _checked(connection: Connection, arrays: Sequence[Any], method: str) -> list[BaseArray]:
    """Returns one array for each buffer. Raises an error if an array cannot be used on this connection."""
    if not arrays:
        raise ArgumentError(
            f"{method} was called without an array.",
            fix=f"pass at least one array: gpu.{method}(x, y).",
        )
    for array in arrays:
        if not isinstance(array, BaseArray):
            raise DtypeError(
                f"{method} takes DeviceArrays, not a {type(array).__name__}.",
                fix="pass the arrays as separate arguments: gpu.durable(*arrays).",
            )
        if array._connection is not connection:
            raise UnsupportedError(
                f"{array!r} belongs to another device or session.",
                fix="use the array's own device: x.device.durable(x).",
            )
        array._usable()
    return list({array._memory.handle: array for array in arrays}.values())
