"""Arrays on a device whose contents are read by calls that block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import dtypes, telemetry
from hearth.arrays import host_copy
from hearth.arrays.base_array import BaseArray
from hearth.errors import ArgumentError, UnsupportedError
from hearth.session.late_errors import NO_STREAM
from hearth.transfer import router
from hearth.transport.spin_wait import DOWN

if TYPE_CHECKING:
    import numpy as np

    from hearth.blocking.connection import BlockingConnection
    from hearth.blocking.device import Device
    from hearth.blocking.stream import Stream
    from hearth.interop.ipc import Exported
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.transfer.pinned_copy import PinnedCopy
    from hearth.transfer.plan import BufferRegion


class DeviceArray(BaseArray):
    """An array in a device's memory. Made by `Device.asarray`, `Device.empty`, `Device.zeros` and similar methods.

    Views (slices, `T`, `view` etc.) share one buffer, which is freed when neither the array nor any view of it exists
    any more. A kernel receives the address of an array's first element, whatever its strides: pass `x.pitch` or
    `x.strides` as a further argument. Commands are ordered on a stream and sent one way; `get`, `np.asarray`, `item`
    and other conversions to host values block.
    """

    __slots__ = ()
    _connection: BlockingConnection

    if TYPE_CHECKING:

        @property
        def device(self) -> Device:
            """The device whose memory holds the array."""
            ...

    # ---- contents ----

    @telemetry.traced("hearth.get", telemetry.of_array)
    def get(
        self,
        out: np.ndarray[Any, Any] | None = None,
        stream: Stream | None = None,
        *,
        blocking: bool = True,
        timeout: float | None = None,
        progress: bool | Progress | None = None,
    ) -> np.ndarray[Any, Any]:
        """Copies the array to host memory, after the earlier work on `stream` and on the array.

        Blocks until the contents have arrived.

        Args:
            out: Host array of the same shape and dtype to fill; None: a new one.
            stream: Stream that orders the read; None: the current one.
            blocking: False returns without waiting if `out` lies in pinned memory and is C-contiguous:
                `out` is filled in the order of the stream, and must not be read before the stream has been
                synchronized, which raises failures. In other cases (ordinary memory, a device of another host) the call
                blocks nevertheless.
            timeout: Seconds to wait at most; None: no limit.
            progress: True for a bar on a terminal or in a notebook, or ``f(done, total)``, called with bytes.

        Returns:
            `out`, or the new array.

        Raises:
            HearthError: Earlier work on the stream or the array failed.
            BufferLostError: The array was lost with its device process.
            DeviceLostError: The device was lost; raised once for each loss.
            TimeoutError: The contents have not arrived in time.
            ArgumentError: `out` is read-only, or of another shape or dtype.
        """
        copies = self._copies
        if out is not None and copies is not None and progress is None:
            copy = copies.find(self, out, DOWN, stream, blocking)
            if copy is not None and host_copy.repeat_read(self, copy, out, timeout, blocking):
                return out
        self._connection.raise_deferred(NO_STREAM)  # the stream's handle is known only after the device is attached
        timeout = self._connection.opened(timeout)
        attachment = self._usable()
        host, into = host_copy.destination(self, out)
        if self._nbytes:
            host_copy.read(self, attachment, stream, into, timeout, progress, blocking or into is not host)
        if into is not host:
            host[...] = into
        return host

    @telemetry.traced("hearth.get", telemetry.of_array)
    def readinto(
        self,
        buffer: Any,
        stream: Stream | None = None,
        *,
        timeout: float | None = None,
        progress: bool | Progress | None = None,
    ) -> int:
        """Reads the bytes of the array, in C order, into a buffer. Blocks as `get` does.

        Args:
            buffer: A writable, contiguous buffer of `nbytes` bytes: a bytearray, `array.array`, memoryview, mmap or
                NumPy array with elements of any type.
            stream: Stream that orders the read; None: the current one.
            timeout: Seconds to wait at most; None: no limit.
            progress: True for a progress bar, or ``f(done, total)``, called with bytes.

        Returns:
            The number of bytes, as `io.RawIOBase.readinto` does.

        Raises:
            DtypeError: `buffer` has no buffer interface.
            ArgumentError: `buffer` is read-only, not contiguous, or of another size.
            HearthError: An error that `get` raises.
        """
        data = dtypes.writable(buffer, self._nbytes)
        self._connection.raise_deferred(NO_STREAM)
        timeout = self._connection.opened(timeout)
        attachment = self._usable()
        if self._nbytes:
            host_copy.fetch(self, attachment, stream, data, timeout, progress)
        return self._nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array on a device cannot be exported to the host without a copy")
        host = self.get()
        return host if dtype is None else host.astype(dtype, copy=False)

    def item(self, *index: SupportsIndex) -> Any:
        """Reads one element as a Python object, and transfers only that element. Blocks as `get` does.

        Args:
            *index: A flat index, or one index for each axis; none: the only element.

        Returns:
            The element, as NumPy's `item` returns it.

        Raises:
            ValueError: No index is given, and there are several elements; or the number of indices is neither one nor
                the number of axes.
            IndexError: The index is out of bounds.
            HearthError: An error that `get` raises.
        """
        from hearth.arrays import views

        return views.element(self, index)._element()

    def tolist(self) -> Any:
        """Reads the elements as nested lists of Python objects. Blocks as `get` does.

        Returns:
            Lists nested as deep as the array has axes; for an array without axes, its element.
        """
        dtype = self._dtype
        if isinstance(dtype, dtypes.Element):
            return dtypes.elements(self._bytes(), self._shape, dtype)
        return self.get().tolist()

    def tobytes(self) -> bytes:
        """Reads the bytes of the array, in C order. Blocks as `get` does; `readinto` fills existing memory.

        Returns:
            A copy of the array's bytes.
        """
        return bytes(self._bytes())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth value of an array of {self.size} elements is ambiguous; use a copy: "
                "x.get().any(), x.get().all()"
            )
        return bool(self._element())

    def __int__(self) -> int:
        return int(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        if self._shape or self._dtype.kind not in "iu":
            raise TypeError("only an integer array without axes can be an index")
        return int(self.item())

    def __format__(self, format_spec: str) -> str:
        if not format_spec:
            return str(self)
        if self._shape:
            raise TypeError(f"{format_spec!r} formats one element, not an array of shape {self._shape}: format x.get()")
        return format(self.item(), format_spec)

    def _bytes(self) -> memoryview:
        data = memoryview(bytearray(self._nbytes))
        self.readinto(data)
        return data

    def _element(self) -> Any:
        """Reads the only element as a Python object."""
        dtype = self._dtype
        if isinstance(dtype, dtypes.Element):
            return dtypes.elements(self._bytes(), (), dtype)
        return self.get().item()

    def _number(self) -> Any:
        """Reads the only element as a NumPy scalar, or as a Python number if the dtype is known without NumPy."""
        if self.size != 1:
            raise TypeError(f"only arrays of one element can be converted to a Python number; this one has {self.size}")
        if isinstance(self._dtype, dtypes.Element):
            return self._element()
        return self.get().reshape(())[()]

    # ---- sharing ----

    def ipc(self) -> Exported:
        """Maps the array's memory into this process, for CuPy, PyTorch and other libraries. Blocks as `get` does.

        It is for libraries that use the GPU of this host themselves; for NumPy if the device is of the CPU backend. See
        `hearth.interop.ipc.Exported`.

        Returns:
            The mapped memory, which the caller closes.

        Raises:
            UnsupportedError: This process cannot map the memory: it runs on another host, has no CUDA, or does not see
                that GPU.
            ArgumentError: The array is empty, attached, published or used by graphs.
            OutOfMemoryError: The device has no room for the memory that is shared.
            QuotaExceededError: A limit is exceeded.
            AuthenticationError: The caller has no right to read and to write.
        """
        from hearth.interop import ipc

        return ipc.export(self)

    def publish(self, name: str, tenants: Sequence[str] = (), *, replace: bool = False) -> None:
        """Lets other sessions attach the array under a name, read-only: see `Device.publish`.

        Blocks until it is published.

        Args:
            name: Name within this tenant.
            tenants: Other tenants that may attach it; ``"*"``: all.
            replace: Ends an earlier publication under the name.

        Raises:
            HearthError: An error that `Device.publish` raises.
        """
        self._device.publish(name, self, tenants, replace=replace)

    # There is no `__cuda_array_interface__`, because libraries read that attribute without being asked to and do not
    # keep the memory alive. The object that `ipc` returns has it, and has an explicit end.

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's type and number of the device, as numbered in this process.

        Raises `BufferError` if this process does not have that device.
        """
        from hearth.interop.ipc_memory import device_of

        try:
            return device_of(self._device.properties).dlpack_device
        except UnsupportedError as error:
            raise BufferError(str(error)) from error

    def __dlpack__(
        self,
        *,
        stream: Any = None,  # unused: the call waits for all earlier work, so the consumer's stream need not wait
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns a DLPack capsule of the array's memory, mapped as by `ipc`, with the same rules for synchronization.

        The mapping ends with the object that the consumer makes of the capsule. ``copy=True`` shares a copy on the
        device. ``dl_device=(1, 0)`` asks for host memory, which is a copy unless the device is of the CPU backend.

        Blocks until earlier work is done. Raises `BufferError` if the memory cannot be shared, or not without a copy.
        """
        from hearth.interop import dlpack

        try:
            if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
                return self._host_capsule(tuple(dl_device), copy, max_version)
            shared = self.copy() if copy else self
            dlpack.type_code(shared.dtype, shared.strides)  # raises before the export, which excludes `publish`
            return shared.ipc()._capsule(max_version, copied=bool(copy))
        except (ArgumentError, UnsupportedError) as error:
            raise BufferError(str(error)) from error

    def _host_capsule(self, requested: tuple[int, ...], copy: bool | None, max_version: tuple[int, int] | None) -> Any:
        from hearth.interop import dlpack

        if requested[0] != dlpack.CPU or copy is False:
            raise BufferError(
                f"the array is on DLPack device {self.__dlpack_device__()} and cannot be exported to "
                f"{requested}{' without a copy' if copy is False else ''}; only copies to host memory, (1, 0), "
                "are supported."
            )
        host = self.get()
        return dlpack.capsule(
            host, host.ctypes.data, (dlpack.CPU, 0), host.shape, host.strides, host.dtype,
            max_version=max_version, copied=True,
        )  # fmt: skip

    # ---- internals ----

    def _send(
        self,
        attachment: Attachment,
        region: BufferRegion,
        data: memoryview,
        report: Progress | None,
        blocking: bool,
    ) -> PinnedCopy | None:
        return router.write(self._connection, attachment, region, data, report, blocking=blocking)
