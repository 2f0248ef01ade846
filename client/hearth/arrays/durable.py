"""Durable arrays: they are there again after a loss of the device, as their last complete copy has them.

The daemon keeps copies in its host's memory, taken on the device's side at points of a stream. When a device's process
is lost, the next one has the arrays back, under the same handles, before it serves any session; here their `Memory`
moves to the new `Space`, and they are used on as if nothing had happened.
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
    """See `Device.durable`."""
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=streams.resolve(stream, connection, attachment))
    for array in _checked(connection, arrays, "durable"):
        command.set_durable.buffers.append(array._memory.handle)
    command.set_durable.durable = durable
    known = connection.durables
    for array in arrays:
        if durable:
            known.add(array._memory)
        else:
            known.discard(array._memory)
    attachment.submit(command)


def checkpoint(connection: Connection, arrays: Sequence[Any], stream: BaseStream | None) -> None:
    """See `Device.checkpoint`."""
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=streams.resolve(stream, connection, attachment))
    command.checkpoint.SetInParent()
    for array in _checked(connection, arrays, "checkpoint") if arrays else ():
        if not array.durable:
            raise ArgumentError(
                f"{array!r} is not durable.", reason="INVALID_ARGUMENT", fix="gpu.durable(x) takes its first copy."
            )
        command.checkpoint.buffers.append(array._memory.handle)
    attachment.submit(command)


def _checked(connection: Connection, arrays: Sequence[Any], what: str) -> list[BaseArray]:
    """The arrays, one for each buffer. Raises where they cannot be used here."""
    if not arrays:
        raise ArgumentError(f"{what} of no array.", reason="INVALID_ARGUMENT", fix=f"gpu.{what}(x, y)")
    for array in arrays:
        if not isinstance(array, BaseArray):
            raise DtypeError(
                f"{what} takes DeviceArrays, not a {type(array).__name__}.",
                reason="INVALID_ARGUMENT",
                fix="pass them one by one: gpu.durable(*arrays).",
            )
        if array._connection is not connection:
            raise UnsupportedError(
                f"{array!r} belongs to another device or session.",
                reason="UNSUPPORTED",
                fix="use the device that it lies on: x.device.durable(x).",
            )
        array._usable()
    return list({array._memory.handle: array for array in arrays}.values())
