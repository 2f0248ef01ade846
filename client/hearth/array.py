"""Arrays on a device: C-contiguous, by CuPy's and NumPy's names.

Views (slices of the first axis, `reshape`, `view`) share their buffer, which is freed when the last of them is gone.
Everything is ordered on a stream and sent one way; `get`, `np.asarray` and `item` wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hearth import bulk, progress, shapes, stream, transfer
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
from hearth.memory import Memory
from hearth.views import Views
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from typing import Unpack

    from hearth import tensor_map
    from hearth.attachment import Attachment
    from hearth.device import Device

_PATTERNS = (1, 2, 4, 8, 16)


class DeviceArray(Views):
    """An array in a device's memory. Made by `Device.asarray`, `empty`, `zeros` and their like."""

    __slots__ = ("__weakref__", "_connection", "_device", "_nbytes")

    def __init__(
        self, device: Device, memory: Memory, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._device = device
        self._connection = device._connection
        self._memory = memory
        self._offset = offset
        self._shape = shape
        self._dtype = dtype
        self._nbytes = math.prod(shape) * dtype.itemsize

    # ---- what it is ----

    @property
    def device(self) -> Device:
        """Where it lies."""
        return self._device

    def __repr__(self) -> str:
        freed = ", freed" if self._memory.owner is None else ""
        return f"DeviceArray(shape={self._shape}, dtype={self._dtype}, device={self._device.ordinal}{freed})"

    # ---- to the host ----

    def get(
        self,
        out: np.ndarray[Any, Any] | None = None,
        stream: stream.Stream | None = None,
        *,
        timeout: float | None = None,
        progress: bool | progress.Progress | None = None,
    ) -> np.ndarray[Any, Any]:
        """A copy in host memory, after the work before it on `stream` and on the array; in `out` if given.

        `timeout` in seconds. `progress`: True for a bar on a terminal or in a notebook, or `f(done, total)` in bytes.
        Raises what failed on the stream, `BufferLostError`, `DeviceLostError`, `TimeoutError`.
        """
        self._connection.raise_deferred()
        attachment = self._usable()
        host = np.empty(self._shape, self._dtype) if out is None else self._check_out(out)
        into = host if host.flags.c_contiguous and host.dtype.isnative else np.empty(self._shape, self._dtype)
        if self._nbytes:
            _read(self, attachment, stream, into, timeout, progress)
        if into is not host:
            host[...] = into
        return host

    def item(self) -> Any:
        """The only element, as a Python object."""
        return self.get().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array on a device cannot be seen by the host without a copy")
        host = self.get()
        return host if dtype is None else host.astype(dtype, copy=False)

    # ---- from the host and the device ----

    def set(
        self,
        a: Any,
        stream: stream.Stream | None = None,
        *,
        progress: bool | progress.Progress | None = None,
    ) -> None:
        """Overwrites it with a host array of the same shape and dtype, which may be changed once this returns.

        Raises `ArgumentError` and `DtypeError` where they differ.
        """
        host = a if isinstance(a, np.ndarray) else np.asarray(a, self._dtype)
        if host.dtype.newbyteorder("=") != self._dtype:
            raise DtypeError(
                f"an array of {host.dtype} cannot be set into one of {self._dtype}.",
                reason="INVALID_ARGUMENT",
                fix=f"use a.astype({str(self._dtype)!r}).",
            )
        if host.shape != self._shape:
            raise ArgumentError(
                f"an array of shape {host.shape} cannot be set into one of shape {self._shape}.",
                reason="INVALID_ARGUMENT",
                fix="slice or reshape one of them, or use np.broadcast_to(a, shape).",
            )
        self._write(host, stream, progress)

    def fill(self, value: Any, stream: stream.Stream | None = None) -> None:
        """Sets every element to `value`."""
        element = _element(value, self._dtype)
        if self._nbytes == 0:
            return
        pattern = element.tobytes()
        if not any(pattern):
            pattern = b"\0"
        if len(pattern) not in _PATTERNS:
            self._write(np.full(self._shape, element, self._dtype), stream, None)
            return
        attachment = self._usable()
        command = commands_pb2.Command(stream=self._stream(stream, attachment))
        command.fill.buffer = self._memory.handle
        command.fill.offset = self._offset
        command.fill.size = self._nbytes
        command.fill.pattern = pattern
        attachment.submit(command)

    def copy_from(self, other: DeviceArray, stream: stream.Stream | None = None) -> None:
        """Overwrites it with an array of the same device, shape and dtype, on the device."""
        if not isinstance(other, DeviceArray):
            raise DtypeError(
                f"copy_from takes a DeviceArray, not a {type(other).__name__}.",
                reason="INVALID_ARGUMENT",
                fix="use x.set(a) for host arrays.",
            )
        if other._connection is not self._connection:
            raise UnsupportedError(
                "the arrays lie on different devices or belong to different sessions.",
                reason="UNSUPPORTED",
                fix="go through the host: x.set(y.get()).",
            )
        if other._shape != self._shape or other._dtype != self._dtype:
            raise ArgumentError(
                f"{other!r} cannot be copied into {self!r}.", reason="INVALID_ARGUMENT", fix="reshape or view one."
            )
        if self._memory is other._memory and abs(self._offset - other._offset) < self._nbytes:
            if self._offset == other._offset:
                return
            raise ArgumentError(
                "the arrays overlap in memory.", reason="INVALID_ARGUMENT", fix="copy from y.copy() instead."
            )
        attachment = self._usable()
        other._usable()
        if self._nbytes == 0:
            return
        command = commands_pb2.Command(stream=self._stream(stream, attachment))
        command.copy.destination = self._memory.handle
        command.copy.destination_offset = self._offset
        command.copy.source = other._memory.handle
        command.copy.source_offset = other._offset
        command.copy.size = self._nbytes
        attachment.submit(command)

    def copy(self, stream: stream.Stream | None = None) -> DeviceArray:
        """A copy on the same device."""
        self._usable()
        fresh = allocate(self._device, self._shape, self._dtype, stream)
        fresh.copy_from(self, stream)
        return fresh

    def tensor_map(
        self,
        box: Sequence[int] | None = None,
        *,
        im2col: tensor_map.Im2col | None = None,
        **options: Unpack[tensor_map.Options],
    ) -> tensor_map.TensorMap:
        """The array as TMA sees it, to be passed to kernels; see `TensorMap`."""
        from hearth.tensor_map import TensorMap

        return TensorMap(self, box, im2col=im2col, **options)

    def free(self) -> None:
        """Gives the memory back now, for all views; using any of them afterwards is an error."""
        self._memory.free()

    # ---- inside ----

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        return DeviceArray(self._device, self._memory, self._offset + offset, shape, dtype)

    def _usable(self) -> Attachment:
        return self._connection.check(self._memory, repr(self))

    def _stream(self, given: stream.Stream | None, attachment: Attachment) -> int:
        return stream.resolve(given, self._connection, attachment)

    def _write(
        self,
        host: np.ndarray[Any, Any],
        stream: stream.Stream | None,
        show: bool | progress.Progress | None,
    ) -> None:
        attachment = self._usable()
        host = np.ascontiguousarray(host, self._dtype)
        handle = self._stream(stream, attachment)
        data = transfer.host_bytes(host)
        report = progress.reporter(show, "upload")
        bulk.write(self._connection, attachment, handle, self._memory.handle, self._offset, data, report)

    def _check_out(self, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not isinstance(out, np.ndarray) or out.shape != self._shape or out.dtype != self._dtype:
            what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ArgumentError(
                f"out is {what}; it has to be a NumPy array of {self._dtype} {self._shape}.",
                reason="INVALID_ARGUMENT",
                fix="np.empty(x.shape, x.dtype)",
            )
        if not out.flags.writeable:
            raise ArgumentError("out is read-only.", reason="INVALID_ARGUMENT", fix="pass a writable array.")
        return out


def allocate(
    device: Device, shape: tuple[int, ...], dtype: np.dtype[Any], on: stream.Stream | None = None
) -> DeviceArray:
    """An array whose contents are whatever the memory held."""
    size = shapes.bytes_of(shape, dtype)
    connection = device._connection
    attachment = connection.attachment()
    handle = connection.mint()
    command = commands_pb2.Command(stream=stream.resolve(on, connection, attachment))
    command.allocate.buffer = handle
    command.allocate.size = size
    attachment.submit(command)
    assert attachment.space is not None
    return DeviceArray(device, Memory(attachment.space, handle, size), 0, shape, dtype)


def _element(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """`value` as one element of `dtype`. Raises `DtypeError` where it cannot be one."""
    try:
        element = np.asarray(value).astype(dtype) if not isinstance(value, int | tuple) else np.array(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DtypeError(f"{value!r} is no {dtype} ({error}).", reason="INVALID_ARGUMENT", fix="convert it.") from None
    if element.shape != ():
        raise ArgumentError(
            f"fill takes one value, not an array of shape {element.shape}.",
            reason="INVALID_ARGUMENT",
            fix="use x.set(np.broadcast_to(a, x.shape)).",
        )
    return element


def _read(
    array: DeviceArray,
    attachment: Attachment,
    on: stream.Stream | None,
    into: np.ndarray[Any, Any],
    timeout: float | None,
    show: bool | progress.Progress | None,
) -> None:
    bulk.read(
        array._connection,
        attachment,
        stream.resolve(on, array._connection, attachment),
        array._memory.handle,
        array._offset,
        transfer.host_bytes(into),
        timeout,
        progress.reporter(show, "download"),
    )
