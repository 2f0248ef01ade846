"""Durable arrays: they are there again after a loss of the device, as their last complete copy has them.

The daemon keeps copies in its host's memory, taken on the device's side at points of a stream. When a device's process
is lost, the next one has the arrays back, under the same handles, before it serves anybody; here their `Memory` moves
to the new `Space`, and they are used on as if nothing had happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from hearth import stream as streams
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.arrays.array import DeviceArray
    from hearth.session.connection import Connection
    from hearth.stream import Stream


class Durability:
    """The part of `Device` that makes arrays durable."""

    _connection: Connection

    @overload
    def durable(self, array: DeviceArray, /, *, durable: bool = True, stream: Stream | None = None) -> DeviceArray: ...
    @overload
    def durable(
        self, array: DeviceArray, /, *more: DeviceArray, durable: bool = True, stream: Stream | None = None
    ) -> list[DeviceArray]: ...
    def durable(
        self, *arrays: DeviceArray, durable: bool = True, stream: Stream | None = None
    ) -> DeviceArray | list[DeviceArray]:
        """Has these arrays brought back, bit for bit, when the device's process is lost; answers them.

        A copy is taken in the daemon's host memory at this point of the stream, and at each `checkpoint`; the stream
        goes on beside it, and only what writes to the arrays next waits. All arrays on the same memory (views) are
        durable together. Each takes twice its size, which counts against `durable_bytes` of the tenant and the node:
        `QuotaExceededError`, as all that goes wrong with a copy, comes with the next `synchronize`, `flush` or `get`.
        ``durable=False`` ends it, and so does the array's end.

        Until the first copy is complete, and it is for sure when a `synchronize` has returned, a loss is a loss. After
        it, whatever was written since the last complete copy is gone: `DeviceLostError` says so once, at the next
        `synchronize` or `get`, also where nothing was under way.
        """
        attachment = self._connection.attachment()
        command = commands_pb2.Command(stream=streams.resolve(stream, self._connection, attachment))
        for array in self._own(arrays, "durable"):
            command.set_durable.buffers.append(array._memory.handle)
        command.set_durable.durable = durable
        known = self._connection.durables
        for array in arrays:
            if durable:
                known.add(array._memory)
            else:
                known.discard(array._memory)
        attachment.submit(command)
        return arrays[0] if len(arrays) == 1 else list(arrays)

    def checkpoint(self, *arrays: DeviceArray, stream: Stream | None = None) -> None:
        """Takes new copies of durable arrays, as they are at this point of the stream: all of them, or none.

        Without arrays: of all durable ones of this session on the device. Returns at once, and the stream goes on
        beside the copies. After a loss the arrays are what their last complete copies say; those of this call are
        complete when a `synchronize` has returned without an error. An array whose producer failed is not copied, and
        nor are those beside it: the copies of before stand.
        """
        attachment = self._connection.attachment()
        command = commands_pb2.Command(stream=streams.resolve(stream, self._connection, attachment))
        command.checkpoint.SetInParent()
        for array in self._own(arrays, "checkpoint") if arrays else ():
            if not array.durable:
                raise ArgumentError(
                    f"{array!r} is not durable.", reason="INVALID_ARGUMENT", fix="gpu.durable(x) takes its first copy."
                )
            command.checkpoint.buffers.append(array._memory.handle)
        attachment.submit(command)

    def _own(self, arrays: tuple[Any, ...], what: str) -> list[DeviceArray]:
        """The arrays, one for each buffer. Raises where they cannot be used here."""
        from hearth.arrays.array import DeviceArray

        if not arrays:
            raise ArgumentError(f"{what} of no array.", reason="INVALID_ARGUMENT", fix=f"gpu.{what}(x, y)")
        for array in arrays:
            if not isinstance(array, DeviceArray):
                raise DtypeError(
                    f"{what} takes DeviceArrays, not a {type(array).__name__}.",
                    reason="INVALID_ARGUMENT",
                    fix="pass them one by one: gpu.durable(*arrays).",
                )
            if array._connection is not self._connection:
                raise UnsupportedError(
                    f"{array!r} belongs to another device or session.",
                    reason="UNSUPPORTED",
                    fix="use the device that it lies on: x.device.durable(x).",
                )
            array._usable()
        return list({cast("DeviceArray", array)._memory.handle: array for array in arrays}.values())
