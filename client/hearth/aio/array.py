"""Arrays on a device, for asyncio: calls that read an array are awaited, calls that write to it do not wait."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from hearth import dtypes, telemetry
from hearth import progress as progresses
from hearth.aio import transfers
from hearth.aio.event_loop import in_loop
from hearth.arrays import host_copy
from hearth.arrays.base_array import BaseArray
from hearth.errors import ArgumentError, LaunchError
from hearth.transfer import plan, registered, router
from hearth.transport.spin_wait import DOWN, UP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    import numpy as np

    from hearth.aio.connection import LoopConnection
    from hearth.aio.device import Device
    from hearth.aio.stream import Stream
    from hearth.interop.ipc import Exported
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment


_SHARED_READ_BYTES = 512 << 10
"""Size in bytes from which a read through shared memory takes less time than a read in a batch, although it needs two
wake-ups of other threads: half the time at 1 MiB (CPU)."""


class DeviceArray(BaseArray):
    """The asyncio counterpart of `hearth.DeviceArray`: `get`, `item`, `publish`, `ipc` and the like are awaited."""

    __slots__ = ()

    _connection: LoopConnection

    if TYPE_CHECKING:

        @property
        def device(self) -> Device:
            """The device whose memory holds the array."""
            ...

    @telemetry.traced("hearth.get", telemetry.of_array)
    async def get(
        self,
        out: np.ndarray[Any, Any] | None = None,
        stream: Stream | None = None,
        *,
        blocking: bool = True,
        timeout: float | None = None,
        progress: bool | Progress | None = None,
    ) -> np.ndarray[Any, Any]:
        """Copies the array to host memory, after the earlier work on `stream` and on the array.

        The read takes its place in the order of the stream when the coroutine is first awaited. If the await is
        cancelled or times out, `out` is either unchanged or, if copying had begun, filled; it is not written to
        afterwards.

        Args:
            out: Host array of the same shape and dtype to fill; None: a new one.
            stream: Stream that orders the read; None: the current one.
            blocking: False returns before `out` is filled if `out` lies in pinned memory (`hearth.empty_pinned`) and is
                C-contiguous: the device fills `out` in the order of the stream, and it must not be read before the
                stream has been synchronized, which raises failures. In other cases the contents are awaited
                nevertheless.
            timeout: Seconds to wait at most; None: no limit.
            progress: True for a bar on a terminal or in a notebook, or ``f(done, total)``, called with bytes in the
                event loop.

        Returns:
            `out`, or the new array.

        Raises:
            HearthError: Earlier work on the stream or the array failed.
            BufferLostError: The array was lost with its device process.
            DeviceLostError: The device was lost; raised once for each loss.
            TimeoutError: The contents have not arrived in time.
            ArgumentError: `out` is read-only, or of another shape or dtype.
        """
        connection = self._connection
        timeout = await connection.opened(timeout)
        connection.raise_deferred()
        attachment = self._usable()
        host, into = host_copy.destination(self, out)
        if self._nbytes:
            await self._read_bytes(attachment, stream, plan.host_bytes(into), blocking, into is out, timeout, progress)
        if into is not host:
            host[...] = into
        return host

    @telemetry.traced("hearth.get", telemetry.of_array)
    async def readinto(
        self,
        buffer: Any,
        stream: Stream | None = None,
        *,
        timeout: float | None = None,
        progress: bool | Progress | None = None,
    ) -> int:
        """Reads the bytes of the array, in C order, into a buffer.

        If the await is cancelled or times out, the same applies to `buffer` as to `out` in `get`.

        Args:
            buffer: A writable, contiguous buffer of `nbytes` bytes: a bytearray, `array.array`, memoryview, mmap or
                NumPy array with elements of any type.
            stream: Stream that orders the read; None: the current one.
            timeout: Seconds to wait at most; None: no limit.
            progress: True for a progress bar, or ``f(done, total)``, called with bytes in the event loop.

        Returns:
            The number of bytes, as `io.RawIOBase.readinto` does.

        Raises:
            DtypeError: `buffer` has no buffer interface.
            ArgumentError: `buffer` is read-only, not contiguous, or of another size.
            HearthError: An error that `get` raises.
        """
        data = dtypes.writable(buffer, self._nbytes)
        timeout = await self._connection.opened(timeout)
        self._connection.raise_deferred()
        attachment = self._usable()
        if self._nbytes:
            await self._read_bytes(attachment, stream, data, True, True, timeout, progress)
        return self._nbytes

    async def _read_bytes(
        self,
        attachment: Attachment,
        stream: Stream | None,
        data: memoryview,
        blocking: bool,
        callers_memory: bool,
        timeout: float | None,
        progress: bool | Progress | None,
    ) -> None:
        """Reads all bytes into `data`.

        `callers_memory`: `data` is memory of the caller; otherwise nothing else refers to it. Raises `TimeoutError`
        after `timeout` seconds.
        """
        connection, source = self._connection, host_copy.contiguous(self, stream)
        region = host_copy.region_of(source, attachment, stream)
        report = progresses.reporter(progress, "download")
        if not blocking and callers_memory and region.recorded and registered.shareable(data):
            from hearth.transfer import shared

            await connection.wait_attached()  # memory is shared with a device process that is known
            record = partial(shared.record, DOWN, connection, attachment, region, data)
            if await connection.home.call(record):
                return
        if plan.inline(len(data), attachment.session.limits) and not _prefers_shared_memory(
            connection, attachment, len(data)
        ):
            reading = router.reading(connection, attachment, region, data, report)
            await connection.home.result_of(reading, timeout)
        else:
            waits = blocking or not callers_memory or not transfers.fillable(connection, attachment, data)
            await transfers.download(
                connection, attachment, region, data, timeout, report, owned=not callers_memory, blocking=waits
            )
        connection.raise_deferred()  # an earlier copy may have failed meanwhile, and its answer has arrived

    async def item(self, *index: SupportsIndex) -> Any:
        """Reads one element as a Python object, and transfers only that element.

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

        return await views.element(self, index)._element()

    async def tolist(self) -> Any:
        """Reads the elements as nested lists of Python objects.

        Returns:
            Lists nested as deep as the array has axes; for an array without axes, its element.
        """
        dtype = self._dtype
        if isinstance(dtype, dtypes.Element):
            return dtypes.elements(await self._bytes(), self._shape, dtype)
        return (await self.get()).tolist()

    async def tobytes(self) -> bytes:
        """Reads the bytes of the array, in C order.

        Returns:
            A copy of the array's bytes.
        """
        return bytes(await self._bytes())

    async def _bytes(self) -> memoryview:
        data = memoryview(bytearray(self._nbytes))
        await self.readinto(data)
        return data

    async def _element(self) -> Any:
        dtype = self._dtype
        if isinstance(dtype, dtypes.Element):
            return dtypes.elements(await self._bytes(), (), dtype)
        return (await self.get()).item()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("an array of hearth.aio is not converted to a number implicitly: use await x.item()")

    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError("an array of hearth.aio is not copied to the host implicitly: use await x.get()")

    async def ipc(self) -> Exported:
        """Maps the array's memory into this process, for CuPy, PyTorch and other libraries.

        See `hearth.DeviceArray.ipc`.

        Returns:
            The mapped memory, which the caller closes. If the await is cancelled, the memory is unmapped.

        Raises:
            UnsupportedError: This process cannot map the memory: it runs on another host, has no CUDA, or does not see
                that GPU.
            ArgumentError: The array is empty, attached, published or used by graphs.
            OutOfMemoryError: The device has no room for the memory that is shared.
            QuotaExceededError: A limit is exceeded.
            AuthenticationError: The caller has no right to read and to write.
        """
        from hearth.interop import ipc

        await self._connection.opened()
        return await self._connection.home.call(partial(ipc.export, self), undo=lambda exported: exported.close())

    async def publish(self, name: str, tenants: Sequence[str] = (), *, replace: bool = False) -> None:
        """Lets other sessions attach the array under a name, read-only, after the earlier work is done.

        Args:
            name: Name within this tenant.
            tenants: Other tenants that may attach it; ``"*"``: all.
            replace: Ends an earlier publication under the name.

        Raises:
            HearthError: An error that `Device.publish` raises.
        """
        await self._device.publish(name, self, tenants, replace=replace)

    def _send(
        self,
        attachment: Attachment,
        region: plan.BufferRegion,
        data: memoryview,
        report: Progress | None,
        blocking: bool,
    ) -> None:
        if not in_loop():  # a plain call from another thread, which may block
            if region.recorded:
                self._connection.block_until_attached()  # memory is shared with a device process that is known
            router.write(self._connection, attachment, region, data, report, blocking=blocking)
            return
        if blocking:
            raise ArgumentError(
                "blocking=True would block the event loop.",
                fix="omit it: the contents are copied before the call returns, except those in pinned memory, "
                "which must not change until await gpu.synchronize().",
            )
        if region.recorded and registered.shareable(data):
            from hearth.transfer import shared

            if shared.record(UP, self._connection, attachment, region, data, register=False):
                return
            raise LaunchError(
                "a copy from pinned memory cannot be recorded in the event loop before the memory is shared with the "
                "device, which blocks.",
                reason="CAPTURE_INVALID",
                fix="record it in a thread: await asyncio.to_thread(x.set, a, stream).",
            )
        if plan.inline(len(data), attachment.session.limits):
            router.write(self._connection, attachment, region, data, report, shared=False)
        else:
            transfers.upload(self._connection, attachment, region, data, report)


def _prefers_shared_memory(connection: LoopConnection, attachment: Attachment, size: int) -> bool:
    """Returns True if a read that would fit in a batch is to use shared memory instead.

    This is so if the connection has read such sizes repeatedly, and memory can probably be shared with the device.
    """
    return (
        plan.should_use_ring(connection, size)
        and size >= _SHARED_READ_BYTES
        and registered.likely(connection, attachment)
    )
