"""Arrays on a device, by CuPy's and NumPy's names: contiguous, or rows at one distance from each other.

Views (slices, `reshape`, `view`) share their buffer, which is freed when the last of them is gone. A kernel is passed
the address of an array's first element, whatever its strides: pass `x.pitch` or `x.strides` beside it.
Everything is ordered on a stream and sent one way; `get`, `np.asarray` and `item` wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from hearth import dtypes, shapes, stream
from hearth import lazy_numpy as np
from hearth.arrays.arithmetic import NoArithmetic
from hearth.arrays.exchange import Exchange
from hearth.codec import encode
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
from hearth.session.memory import Memory
from hearth_proto import layouts
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from typing import Self, Unpack

    from hearth.arrays import strided, tensor_map
    from hearth.arrays.astype import Casting
    from hearth.dtypes import Dtype
    from hearth.interfaces import DeviceContext
    from hearth.interop import ipc
    from hearth.types import DeviceProperties

_PATTERNS = (1, 2, 4, 8, 16)


class DeviceArray(NoArithmetic, Exchange):
    """An array in a device's memory. Made by `Device.asarray`, `empty`, `zeros` and their like."""

    __slots__ = ("__weakref__", "_device")

    def __init__(
        self,
        device: DeviceContext,
        memory: Memory,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Raises `UnsupportedError` for strides that make no rows."""
        self._device = device
        self._connection = device._connection
        self._memory = memory
        self._offset = offset
        self._shape = shape
        self._dtype = dtype
        self._nbytes = math.prod(shape) * dtype.itemsize
        self._strides = strides
        self._pairs = None
        self._rows = None
        if strides is not None:
            rows = layouts.rows_of(shape, strides, dtype.itemsize)
            if rows is None:
                from hearth.arrays import strided

                raise strided.no_rows(shape)
            self._rows = None if rows.dense else rows

    # ---- what it is ----

    @property
    def device(self) -> Any:
        """The `Device` where it lies."""
        return self._device

    def __repr__(self) -> str:
        freed = ", freed" if self._memory.owner is None else ""
        return f"DeviceArray(shape={self._shape}, dtype={self._dtype}, device={self._device.ordinal}{freed})"

    def _repr_html_(self) -> str:
        from hearth import html_repr

        device = self._device
        place = f"{device.ordinal}: {device.properties.name} ({device.properties.backend}) on {device._node.name}"
        rows: list[tuple[str, object]] = [
            ("shape", self.shape),
            ("dtype", self.dtype),
            ("size", html_repr.size(self.nbytes)),
            ("device", place),
        ]
        if not self.flags.c_contiguous:
            rows.append(("strides", self.strides))
        states = {
            "freed": self._memory.owner is None,
            "lost": self._memory.space.lost and not self.durable,
            "read-only": self._memory.read_only,
            "durable": self.durable,
        }
        if any(states.values()):
            rows.append(("state", ", ".join(state for state, holds in states.items() if holds)))
        return html_repr.pairs("DeviceArray", rows)

    # ---- for other libraries ----

    def ipc(self) -> ipc.Exported:
        """The same memory, mapped into this process: for CuPy, PyTorch and others that use this host's GPU themselves
        (on the CPU backend, for NumPy). See `hearth.interop.ipc.Exported` for what it is, and until when.

        Waits as `get` does, and raises what that raises; also `UnsupportedError` where this process cannot map it
        (another host, no CUDA, not that GPU), `ArgumentError` for what is attached, published or used by graphs,
        `OutOfMemoryError`, `QuotaExceededError`, and `AuthenticationError` without the rights to read and to write.
        """
        from hearth.interop import ipc

        return ipc.export(self)

    def _properties(self) -> DeviceProperties:
        return self._device.properties

    # ---- contents ----

    def __setitem__(self, index: Any, value: Any) -> None:
        """Sets what `x[index]` shows to a number, a host array or an array on the device, cast and broadcast as in
        NumPy. One way; from the device itself nothing passes through the host.

        Raises as ``x[index]`` does; `ArgumentError` and `DtypeError` for values that do not fit, `UnsupportedError` for
        an array on the device that would be repeated along inner axes, or belongs to another session.
        """
        from hearth.arrays.setitem import assign

        assign(self[index], value)

    def fill(self, value: Any, stream: stream.Stream | None = None) -> None:
        """Sets every element to `value`."""
        pattern = dtypes.pattern(value, self._dtype) if isinstance(self._dtype, dtypes.Element) else None
        if pattern is None:
            pattern = shapes.element(value, self.dtype).tobytes()
        if self._nbytes == 0:
            return
        repeated = pattern if any(pattern) else b"\0"
        if len(repeated) not in _PATTERNS or self._offset % len(repeated):
            self._write(np.full(self._shape, np.frombuffer(pattern, self.dtype)[0], self.dtype), stream, None)
            return
        attachment = self._usable()
        rows = self._as_rows()
        command = encode.fill(self._stream(stream, attachment), self._memory.handle, self._offset, rows.width, repeated)
        attachment.submit(command)
        if rows.rows <= 1:
            return
        from hearth.arrays import strided

        for move in strided.doublings(rows):
            attachment.submit(self._copy_command(command.stream, self, move))

    def copy_from(self, other: DeviceArray, stream: stream.Stream | None = None) -> None:
        """Overwrites it with an array of the same shape and dtype, on this device or on another one of the session.

        From another device it is a send and a receive (so that it takes the right to them): `stream` is one of this
        device, there it is the current one. Raises `UnsupportedError` for another session's array, `ArgumentError`
        for another shape or dtype or memory that overlaps, `LaunchError` where it cannot be recorded in a graph.
        """
        if not isinstance(other, DeviceArray):
            raise DtypeError(
                f"copy_from takes a DeviceArray, not a {type(other).__name__}.",
                reason="INVALID_ARGUMENT",
                fix="use x.set(a) for host arrays.",
            )
        if other._device._node._session is not self._device._node._session:
            raise UnsupportedError(
                "the arrays belong to different sessions.",
                reason="UNSUPPORTED",
                fix="go through the host, x.set(y.get()); or use a hearth.Group over both: broadcast, send and recv.",
            )
        if other._shape != self._shape or (other._dtype is not self._dtype and other.dtype != self.dtype):
            raise ArgumentError(
                f"{other!r} cannot be copied into {self!r}.", reason="INVALID_ARGUMENT", fix="reshape or view one."
            )
        to = self._as_rows()._replace(offset=self._offset)
        since = other._as_rows()._replace(offset=other._offset)
        if self._memory is other._memory and layouts.overlap(to, since):
            if to == since:
                return
            raise ArgumentError(
                f"the arrays overlap in memory: bytes {since} and {to}.",
                reason="INVALID_ARGUMENT",
                fix="copy from y.copy() instead.",
            )
        attachment = self._usable()
        other._usable()
        if self._nbytes == 0:
            return
        if other._connection is not self._connection:
            from hearth.arrays.device_copy import copy_between

            copy_between(self, other, stream)
            return
        handle = self._stream(stream, attachment)
        from hearth.arrays import strided

        for move in strided.moves(self._as_rows(), other._as_rows()):
            attachment.submit(self._copy_command(handle, other, move))

    def copy(self, stream: stream.Stream | None = None) -> Self:
        """A copy on the same device, contiguous."""
        self._usable()
        fresh = cast("Self", allocate(self._device, self._shape, self._dtype, stream))
        fresh.copy_from(self, stream)
        return fresh

    def flatten(self, stream: stream.Stream | None = None) -> Self:
        """A copy on the same device, with one axis."""
        return self.copy(stream).ravel()

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def astype(
        self, dtype: Any, stream: stream.Stream | None = None, *, casting: Casting = "unsafe", copy: bool = True
    ) -> Self:
        """A copy on the same device with its elements converted; with ``copy=False``, itself where they need not be.

        One way, by a kernel that the daemon compiles once for each pair of dtypes. Booleans, whole numbers, floats of
        16 (also bfloat16), 32 and 64 bits and complex numbers are converted; of a complex number a real dtype has the
        real part. What the new type does not hold becomes what C++ makes of it on the device. Raises `UnsupportedError`
        for other dtypes, `DtypeError` where `casting` forbids it.
        """
        from hearth.arrays.astype import astype

        return astype(self, dtype, stream, casting, copy)

    def tensor_map(
        self,
        box: Sequence[int] | None = None,
        *,
        im2col: tensor_map.Im2col | None = None,
        **options: Unpack[tensor_map.Options],
    ) -> tensor_map.TensorMap:
        """The array as TMA sees it, to be passed to kernels; see `TensorMap`."""
        from hearth.arrays.tensor_map import TensorMap

        return TensorMap(self, box, im2col=im2col, **options)

    @property
    def durable(self) -> bool:
        """Whether it comes back after a loss of the device: see `Device.durable`."""
        return self._memory.owner is not None and self._memory in self._connection.durables

    def checkpoint(self, stream: stream.Stream | None = None) -> None:
        """Takes a new copy of a durable array, as it is at this point of the stream: see `Device.checkpoint`."""
        self._device.checkpoint(self, stream=stream)

    def publish(self, name: str, tenants: Sequence[str] = ()) -> None:
        """Lets other sessions attach it under `name`, read-only; see `Device.publish`."""
        self._device.publish(name, self, tenants)

    def free(self) -> None:
        """Gives the memory back now, for all views; using any of them afterwards is an error."""
        self._memory.free()

    # ---- inside ----

    def _view(
        self,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        strides: tuple[int, ...] | None = None,
    ) -> Self:
        made: Self = self._device._array_type(self._device, self._memory, self._offset + offset, shape, dtype, strides)
        return made

    def _copy_command(self, stream: int, other: DeviceArray, move: strided.Move) -> commands_pb2.Command:
        command = commands_pb2.Command(stream=stream)
        command.copy.destination = self._memory.handle
        command.copy.destination_offset = self._offset + move.to
        command.copy.source = other._memory.handle
        command.copy.source_offset = other._offset + move.since
        command.copy.size = move.width
        if move.rows > 1:
            command.copy.rows = move.rows
            command.copy.destination_pitch = move.to_pitch
            command.copy.source_pitch = move.since_pitch
        return command


def allocate(
    device: DeviceContext,
    shape: tuple[int, ...],
    dtype: Dtype,
    on: stream.Stream | None = None,
    *,
    pitched: bool = False,
) -> DeviceArray:
    """An array whose contents are whatever the memory held; `pitched`: with padded rows."""
    size = shapes.bytes_of(shape, dtype)
    strides = None
    if pitched:
        strides, size = layouts.pitched(shape, dtype.itemsize)
    connection = device._connection
    attachment = connection.attachment()
    handle = connection.mint()
    attachment.submit(encode.allocate(stream.resolve_for_memory(on, connection, attachment), handle, size))
    assert attachment.space is not None
    made: DeviceArray = device._array_type(device, Memory(attachment.space, handle, size), 0, shape, dtype, strides)
    return made


def allocate_many(
    device: DeviceContext, specs: Sequence[tuple[tuple[int, ...], Dtype]], on: stream.Stream | None = None
) -> list[DeviceArray]:
    """Arrays in one reservation, had together or not at all."""
    if not specs:
        return []
    connection = device._connection
    attachment = connection.attachment()
    command = commands_pb2.Command(stream=stream.resolve_for_memory(on, connection, attachment))
    space = attachment.space
    assert space is not None
    for shape, dtype in specs:
        command.allocate.parts.add(buffer=connection.mint(), size=shapes.bytes_of(shape, dtype))
    attachment.submit(command)
    return [
        device._array_type(device, Memory(space, part.buffer, part.size), 0, shape, dtype)
        for part, (shape, dtype) in zip(command.allocate.parts, specs, strict=True)
    ]
