"""New arrays on a device, by CuPy's names; `Device` inherits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from hearth import dtypes, shapes
from hearth import lazy_numpy as np
from hearth.arrays.array import DeviceArray, allocate, allocate_many
from hearth.errors import DtypeError, UnsupportedError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.interfaces import DeviceContext
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.stream import Stream


class Creation:
    """The part of `Device` that makes arrays. Sizes are checked here, memory by the daemon: `OutOfMemoryError` comes
    with the next sync, read or flush."""

    _connection: Connection
    _array_type: type[DeviceArray] = DeviceArray

    def _self(self) -> DeviceContext:
        return cast("DeviceContext", self)

    def asarray(
        self,
        a: Any,
        dtype: Any = None,
        stream: Stream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> DeviceArray:
        """`a` on this device: uploaded; copied from another device of the session, as by `DeviceArray.copy_from`; or
        itself, where it lies here already with that dtype. `a` is anything that `np.asarray` takes or that speaks
        DLPack; also an array in this process's own GPU memory (CuPy, PyTorch), which is copied there, where the daemon
        has that GPU on this host. An array of this session with another dtype is converted as by `DeviceArray.astype`.

        An ordinary host array is captured when the call returns, and may be changed then. One in pinned memory
        (`hearth.empty_pinned`, or a C-contiguous part of such) is read by the device itself, in the order of the
        stream: it is to stay as it is until that was synchronized with, unless ``blocking=True``, which waits until it
        has been read. It need not be kept alive. An array that is not C-contiguous is copied on the host first.
        `progress`: as in `DeviceArray.get`.
        """
        if isinstance(a, DeviceArray):
            if a._device._node._session is not self._self()._node._session:
                raise UnsupportedError(
                    f"{a!r} belongs to another session.",
                    reason="UNSUPPORTED",
                    fix="go through the host: gpu.asarray(x.get()); or use a hearth.Group over both.",
                )
            if a._connection is self._connection and (dtype is None or shapes.dtype_of(dtype) == a.dtype):
                return a
        return self.array(a, dtype, stream, blocking=blocking, progress=progress)

    def array(
        self,
        obj: Any,
        dtype: Any = None,
        stream: Stream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> DeviceArray:
        """As `asarray`, always new memory."""
        if not np.here():  # else it sees the same in them
            host = dtypes.host(obj)
            if host is not None and (dtype is None or dtypes.named(dtype) is host.element):
                plain = allocate(self._self(), host.shape, host.element, stream)
                plain._write_bytes(host.data, stream, progress, blocking)
                return plain
        wanted = None if dtype is None else shapes.dtype_of(dtype)
        if isinstance(obj, DeviceArray):
            same = obj._device._node._session is self._self()._node._session
            if same and (wanted is None or wanted == obj.dtype or _converts(obj.dtype, wanted)):
                return self._from_session(obj, wanted, stream)
            obj = self._at_host(obj)  # another session's; or strings and dates, which only the host converts
        made: list[DeviceArray] = []

        def upload(host: np.ndarray[Any, Any]) -> None:
            fresh = allocate(self._self(), host.shape, shapes.dtype_of(host.dtype), stream)
            fresh._write(host, stream, progress, blocking)
            made.append(fresh)

        if isinstance(obj, np.ndarray | np.generic | bool | int | float | complex):
            upload(_host(obj, wanted))
        else:
            from hearth.arrays.asarray import copied, on_gpu, with_host_array

            found = on_gpu(obj)
            if found is not None:
                fresh = copied(obj, found, self._self(), stream)
                return fresh if wanted is None else fresh.astype(wanted, stream, copy=False)
            with_host_array(obj, wanted, upload)
        return made[0]

    def _from_session(self, obj: DeviceArray, wanted: np.dtype[Any] | None, stream: Stream | None) -> DeviceArray:
        """A copy of an array of one of the session's devices."""
        if wanted is not None and wanted != obj.dtype:
            obj = obj.astype(wanted, stream if obj._connection is self._connection else None)
            if obj._connection is self._connection:
                return obj
        if obj._connection is self._connection:
            return obj.copy(stream)
        fresh = allocate(self._self(), obj.shape, obj.dtype, stream)
        fresh.copy_from(obj, stream)
        return fresh

    def _at_host(self, a: DeviceArray) -> Any:
        """An array's contents, which are to become of another dtype."""
        return a.get()

    def empty(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array with arbitrary contents."""
        return allocate(self._self(), shapes.shape_of(shape), shapes.type_of(dtype), stream)

    def empty_pitched(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array with arbitrary contents whose rows (along the last axis) are padded: `x.pitch` bytes apart.

        The pitch is CubeCL's: the row's size rounded up to a power of two from 16 to 512 bytes that grows with it, so
        that every row starts where vector loads can.
        """
        return allocate(self._self(), shapes.shape_of(shape), shapes.type_of(dtype), stream, pitched=True)

    def empty_many(self, specs: Iterable[tuple[shapes.Shape, Any]], stream: Stream | None = None) -> list[DeviceArray]:
        """Arrays of these (shape, dtype) in one reservation, which is had as a whole or not at all.

        Each is an array of its own, at the device's alignment; the memory goes back when the last of them is gone.
        """
        return allocate_many(
            self._self(), [(shapes.shape_of(shape), shapes.type_of(dtype)) for shape, dtype in specs], stream
        )

    @contextmanager
    def persistent_memory(self) -> Iterator[None]:
        """What is allocated inside stays with this session when it is freed, for its next allocation of the same size.

        Others never get it, however short of memory they are, until `memory_cleanup`, or the session's end. For all of
        the session's work on the device, whichever thread it comes from; windows nest.
        """
        connection = self._connection
        attachment = connection.attachment()
        attachment.submit(_mode(commands_pb2.ALLOCATION_MODE_PERSISTENT))
        try:
            yield
        finally:
            now = connection.attachment() if connection.refusal is None else None
            if now is not None and now.space is attachment.space:  # another generation has no window to be closed
                now.submit(_mode(commands_pb2.ALLOCATION_MODE_AUTO))

    def zeros(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array of zeros."""
        return self.full(shape, 0, dtype, stream)

    def ones(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array of ones."""
        return self.full(shape, 1, dtype, stream)

    def full(
        self, shape: shapes.Shape, fill_value: Any, dtype: Any = None, stream: Stream | None = None
    ) -> DeviceArray:
        """An array of `fill_value`, in its own dtype unless another is given."""
        fresh = self.empty(shape, shapes.type_of_value(fill_value) if dtype is None else dtype, stream)
        if isinstance(fill_value, int) and fill_value == 0 and getattr(fresh._dtype, "names", None) is not None:
            fill_value = np.zeros((), fresh.dtype)
        fresh.fill(fill_value, stream)
        return fresh

    def empty_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array with the shape and dtype of `a` (of host or device) and arbitrary contents."""
        return self.empty(a.shape, _type_of(a) if dtype is None else dtype, stream)

    def zeros_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of zeros with the shape and dtype of `a`."""
        return self.zeros(a.shape, _type_of(a) if dtype is None else dtype, stream)

    def ones_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of ones with the shape and dtype of `a`."""
        return self.ones(a.shape, _type_of(a) if dtype is None else dtype, stream)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of `fill_value` with the shape and dtype of `a`."""
        return self.full(a.shape, fill_value, _type_of(a) if dtype is None else dtype, stream)


def _type_of(a: Any) -> Any:
    return a._dtype if isinstance(a, DeviceArray) else a.dtype


def _host(obj: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(obj, dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise DtypeError(
            f"this {type(obj).__name__} makes no array ({error}).", reason="INVALID_ARGUMENT", fix="see np.asarray."
        ) from None


def _converts(since: np.dtype[Any], to: np.dtype[Any] | None) -> bool:
    from hearth.arrays import astype

    return astype.known(since, to)


def _mode(mode: commands_pb2.AllocationMode) -> commands_pb2.Command:
    command = commands_pb2.Command()
    command.set_allocation_mode.mode = mode
    return command
