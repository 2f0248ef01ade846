"""New arrays on a device, by CuPy's names; `Device` inherits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hearth import shapes
from hearth.array import DeviceArray, allocate
from hearth.errors import DtypeError, UnsupportedError

if TYPE_CHECKING:
    from hearth.connection import Connection
    from hearth.device import Device
    from hearth.progress import Progress
    from hearth.stream import Stream


class Creation:
    """The part of `Device` that makes arrays. Sizes are checked here, memory by the daemon: `OutOfMemoryError` comes
    with the next sync, read or flush."""

    _connection: Connection

    def _self(self) -> Device:
        return cast("Device", self)

    def asarray(
        self,
        a: Any,
        dtype: Any = None,
        stream: Stream | None = None,
        *,
        progress: bool | Progress | None = None,
    ) -> DeviceArray:
        """`a` on this device: uploaded, or itself where it lies here already with that dtype.

        The host array is captured when the call returns, and may be changed then. An array that is not C-contiguous is
        copied on the host first. `progress`: as in `DeviceArray.get`.
        """
        if isinstance(a, DeviceArray):
            if a._connection is not self._connection:
                raise UnsupportedError(
                    f"{a!r} belongs to another device or session.",
                    reason="UNSUPPORTED",
                    fix="go through the host: gpu.asarray(x.get()).",
                )
            if dtype is None or shapes.dtype_of(dtype) == a.dtype:
                return a
            a = a.get()
        return self.array(a, dtype, stream, progress=progress)

    def array(
        self,
        obj: Any,
        dtype: Any = None,
        stream: Stream | None = None,
        *,
        progress: bool | Progress | None = None,
    ) -> DeviceArray:
        """As `asarray`, always new memory."""
        if isinstance(obj, DeviceArray) and obj._connection is self._connection and dtype in (None, obj.dtype):
            return obj.copy(stream)
        try:
            host = np.asarray(obj, None if dtype is None else shapes.dtype_of(dtype), order="C")
        except (TypeError, ValueError) as error:
            raise DtypeError(
                f"this {type(obj).__name__} makes no array ({error}).", reason="INVALID_ARGUMENT", fix="see np.asarray"
            ) from None
        fresh = allocate(self._self(), host.shape, shapes.dtype_of(host.dtype), stream)
        fresh._write(host, stream, progress)
        return fresh

    def empty(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array with arbitrary contents."""
        return allocate(self._self(), shapes.shape_of(shape), shapes.dtype_of(dtype), stream)

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
        fresh = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, stream)
        if fresh.dtype.names is not None and isinstance(fill_value, int) and fill_value == 0:
            fill_value = np.zeros((), fresh.dtype)
        fresh.fill(fill_value, stream)
        return fresh

    def empty_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array with the shape and dtype of `a` (of host or device) and arbitrary contents."""
        return self.empty(a.shape, a.dtype if dtype is None else dtype, stream)

    def zeros_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of zeros with the shape and dtype of `a`."""
        return self.zeros(a.shape, a.dtype if dtype is None else dtype, stream)

    def ones_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of ones with the shape and dtype of `a`."""
        return self.ones(a.shape, a.dtype if dtype is None else dtype, stream)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of `fill_value` with the shape and dtype of `a`."""
        return self.full(a.shape, fill_value, a.dtype if dtype is None else dtype, stream)
