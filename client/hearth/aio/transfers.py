"""Transfers of large arrays for asyncio.

The command that writes or reads an array is ordered on its stream, and the bytes are transferred separately. On the
daemon's host, bytes are transferred through shared memory (`hearth.transfer.registered`): a thread sends the device the
location of the bytes, without waiting for the device, and copies downloads to their destination. On other hosts, a
thread carries out the transfer.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hearth import lazy_numpy as np
from hearth import shapes
from hearth.aio.event_loop import in_loop
from hearth.arrays import host_copy
from hearth.arrays.allocation import allocate
from hearth.errors import HearthError
from hearth.session.late_errors import current_origin
from hearth.session.reply import reported_elsewhere
from hearth.transfer import registered, router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.aio.connection import LoopAttachment, LoopConnection
    from hearth.aio.thread_pool import Work
    from hearth.arrays.asarray import GpuMemory
    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike, DeviceContext
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.reply import Reply
    from hearth.transfer.plan import BufferRegion

A = TypeVar("A", bound="ArrayLike")


class _Transfer:
    """The transfer of one array, and the reply to its command."""

    def __init__(
        self,
        connection: LoopConnection,
        attachment: Attachment,
        region: BufferRegion,
        size: int,
        report: Progress | None,
        begin: Callable[[Attachment, BufferRegion, int, int], Reply],
    ) -> None:
        """Sends the command, by `begin`, which is `begin_upload` or `begin_download` of `router`."""
        self._connection = connection
        self._attachment = cast("LoopAttachment", attachment)
        self._size = size
        # any thread may report progress; the event loop then calls `report`
        self._report = None if report is None else lambda *done: connection.home.call_soon(partial(report, *done))
        self._lock = threading.Lock()
        self._number = connection.mint()
        self.reply = begin(attachment, region, self._number, size)


# ---- uploads ----


@contextlib.contextmanager
def _counted(connection: LoopConnection, size: int) -> Iterator[None]:
    """Context in which an upload begins: counts its bytes, which are in transit if the block raises no error.

    Raises `QuotaExceededError` if too many bytes are being uploaded.
    """
    connection.add_upload(size)
    try:
        yield
    except BaseException:
        connection.finish_upload(size)
        raise


def upload(
    connection: LoopConnection,
    attachment: Attachment,
    region: BufferRegion,
    data: memoryview,
    report: Progress | None,
) -> None:
    """Writes bytes in the order of the stream.

    They are copied before the call returns, unless they lie in memory that is shared with the device. Called in the
    event loop.

    An error is raised by the next await that reports errors.

    Args:
        connection: The connection to the device.
        attachment: The attachment to use.
        region: The bytes on the device to overwrite, and the stream.
        data: The bytes to write.
        report: Progress callback, called in the event loop; None: none.

    Raises:
        QuotaExceededError: Too many bytes are being uploaded.
    """
    with _counted(connection, len(data)):
        if not fillable(connection, attachment, data):
            # the caller may change its memory as soon as this call returns
            data = registered.copy_of_bytes(connection, attachment, data)
        transfer = _Upload(connection, attachment, region, len(data), report, lambda: data)
    connection.home.uploads.run(transfer.run)


def copy_from_gpu(device: DeviceContext[A], obj: Any, memory: GpuMemory, stream: BaseStream | None) -> A:
    """Copies an array in GPU memory of this process to new memory of a device. Does not wait in an event loop.

    There, a thread copies the bytes to the host and uploads them, in the order of the stream. An error of that is
    raised by the next await that reports errors.

    Args:
        device: The device.
        obj: The array, which is kept alive until its memory has been read.
        memory: The array's memory.
        stream: Stream of the copy; None: the current one.

    Returns:
        The new array.

    Raises:
        UnsupportedError: This process cannot read `obj`.
        QuotaExceededError: Too many bytes are being uploaded.
    """
    from hearth.arrays.asarray import copy_to_device, local_gpu
    from hearth.transport.memory_segments import address_of

    if not in_loop():  # a plain call from another thread, which may block
        return copy_to_device(obj, memory, device, stream)
    gpu = local_gpu(obj, device)
    array = allocate(device, memory.shape, shapes.dtype_of(memory.dtype), stream)
    size, connection, keep = array.nbytes, cast("LoopConnection", device._connection), [obj]
    if not size:
        return array
    attachment = array._usable()
    region = host_copy.region_of(array, attachment, stream)

    def source() -> memoryview:
        data = registered.memory(size) if registered.likely(connection, attachment) else None
        if data is None:
            data = memoryview(bytearray(size))
        gpu.copy(address_of(data), memory.address, size, memory.streams)
        keep.clear()
        return data

    with _counted(connection, size):
        transfer = _Upload(connection, attachment, region, size, None, source)
    connection.home.uploads.run(transfer.run)
    return array


class _Upload(_Transfer):
    """An upload. The session refers to it until the write is answered, so its bytes stay alive until then."""

    def __init__(
        self,
        connection: LoopConnection,
        attachment: Attachment,
        region: BufferRegion,
        size: int,
        report: Progress | None,
        source: Callable[[], memoryview],
    ) -> None:
        """Begins the upload. `source` returns the bytes; a thread calls it once."""
        super().__init__(connection, attachment, region, size, report, router.begin_upload)
        self._source: Callable[[], memoryview] | None = source
        self._data: memoryview | None = None
        """The bytes, kept until the write is answered."""
        self._origin = current_origin("write", region.stream, region.buffer)
        reply = self.reply
        reply.on_late_error = self._keep_error
        reply.abandon()  # so that its error is known before the answer to a later synchronize
        reply.on_answer = self._answered
        if reply.answered:
            self._answered()

    def _answered(self) -> None:
        """Releases the bytes. Called when neither the client nor the device needs them any more."""
        with self._lock:
            source, self._source, self._data = self._source, None, None
        if source is not None:
            self._connection.finish_upload(self._size)

    def run(self) -> None:
        """Makes the device read the bytes from shared memory, or transfers them; called in a thread of the pool."""
        connection, attachment, reply, source = self._connection, self._attachment, self.reply, self._source
        if source is None:
            return
        try:
            attachment.wait_opened()
            data = self._read(source)
            if data is None:
                return
            with self._lock:
                if self._source is None:
                    return  # the write failed meanwhile, which its answer reports
                self._data = data
            if registered.upload(connection, attachment, self._number, data) is None:
                router.carry_upload(connection, attachment, reply, self._number, data, self._report)
            elif self._report is not None:
                self._report(self._size, self._size)
        except HearthError as error:
            if reply.error is None and not connection.refusal:
                self._keep_error(error)

    def _read(self, source: Callable[[], memoryview]) -> memoryview | None:
        """Returns the bytes.

        If `source` fails, keeps its error, cancels the transfer at the daemon, which would otherwise wait for the
        bytes, and returns None.
        """
        try:
            return source()
        except BaseException as error:  # e.g. MemoryError
            from hearth.transfer.grpc_stream import cancel_transfer

            connection, reply = self._connection, self.reply
            failed_before = reply.error is not None
            reply.on_late_error = None  # the error of `source` is the cause, and is reported instead
            if not (failed_before or connection.refusal):
                failure = error
                if not isinstance(failure, HearthError):
                    failure = HearthError(f"the upload was aborted: {error!r}.", reason="CANCELLED", fix="try again.")
                    failure.__cause__ = error
                self._keep_error(failure)  # before the daemon answers a later synchronize
            cancel_transfer(connection, self._number)
            return None

    def _keep_error(self, error: HearthError) -> None:
        """Keeps an error for the next await that reports errors."""
        if not reported_elsewhere(self._attachment.session.error, error):
            self._connection.defer(error, self._origin)


# ---- downloads ----


class _Download(_Transfer):
    """A download.

    It completes whether or not a task waits for it, because the daemon keeps the bytes until they are received, and
    later work on the stream waits for that.
    """

    def __init__(
        self,
        connection: LoopConnection,
        attachment: Attachment,
        region: BufferRegion,
        into: memoryview,
        report: Progress | None,
        *,
        owned: bool,
        direct: bool,
    ) -> None:
        """Begins the download. `direct`: its bytes are transferred to `into` without a copy."""
        super().__init__(connection, attachment, region, len(into), report, router.begin_download)
        self._into = into
        self._owned = owned
        self._direct = direct
        self._buffer: memoryview | None = None
        """Receive buffer, copied to the caller's memory afterwards. While it is shared memory, the device writes
        to it."""
        self._dropped = self._copying_out = False

    def begin(self) -> bool:
        """Starts the transfer; called in a thread of the pool.

        Returns True if the bytes will be in shared memory when the read is answered, False if they are in the caller's
        memory already.
        """
        size, buffer = self._size, self._into if self._direct else None
        if buffer is None and registered.likely(self._connection, self._attachment):
            buffer = registered.memory(size)
        if buffer is None:
            buffer = self._into if self._owned else memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        if self._transfer_to(buffer):
            return True
        self.copy_out()
        return False

    def _transfer_to(self, buffer: memoryview) -> bool:
        """Transfers the bytes to `buffer`.

        Returns True if they will be there when the read is answered, False if they are there already.
        """
        connection, attachment, reply, number = self._connection, self._attachment, self.reply, self._number
        attachment.wait_opened()
        destination = None
        if registered.shareable(buffer):
            destination = registered.download(connection, attachment, number, buffer)
        self._buffer = buffer
        if destination is not None and destination.guaranteed:
            reply.on_error = partial(registered.mark_spoiled, buffer)  # keeps `buffer` alive in the session
            if reply.error is not None:
                registered.mark_spoiled(buffer)
            return True
        try:
            router.carry_download(connection, attachment, reply, number, buffer, None, self._report)
        except HearthError:
            if destination is None or not reply.answered or reply.error is not None:
                raise  # otherwise the device had received the address of `buffer`, and has written to it
        self._report = None
        return False

    def copy_out(self) -> None:
        """Copies the bytes to the caller's memory; called in a thread of the pool."""
        with self._lock:
            if self._dropped or self._buffer is None:
                return
            self._copying_out = True
        registered.copy(self._into, self._buffer)
        self._buffer = None
        if self._report is not None:
            self._report(len(self._into), len(self._into))

    def drop(self) -> bool:
        """Stops all further writes to the caller's memory.

        Returns True if a copy has started, which then ends shortly.
        """
        with self._lock:
            self._dropped = True
            return self._copying_out and not self._owned


async def download(
    connection: LoopConnection,
    attachment: Attachment,
    region: BufferRegion,
    into: memoryview,
    timeout: float | None,
    report: Progress | None,
    *,
    owned: bool,
    blocking: bool,
) -> None:
    """Reads bytes into memory. If `blocking`, the memory is not written to after this coroutine has ended.

    Args:
        connection: The connection to the device.
        attachment: The attachment to use.
        region: The bytes on the device to read, and the stream.
        into: The memory to fill.
        timeout: Seconds to wait at most; None: no limit.
        report: Progress callback, called in the event loop; None: none.
        owned: Nothing else refers to `into`, so later writes to it do no harm.
        blocking: False returns when it is certain that the device will fill the memory, in the order of the stream; an
            error is then raised by the next await that reports errors. If the device cannot write to the memory,
            returns when it is filled.

    Raises:
        TimeoutError: The bytes have not arrived in time; or the device has not confirmed in time.
        HearthError: The read failed.
    """
    home = connection.home
    deadline = None if timeout is None else home.loop.time() + timeout
    transfer = _Download(connection, attachment, region, into, report, owned=owned, direct=not blocking)
    reply = transfer.reply
    work: Work[bool] | Work[None] = home.downloads.run(transfer.begin)
    shared = False
    try:
        await home.wait_done(work, timeout)
        if not work.done():
            raise reply.given_up(timeout)
        shared = not work.exception() and bool(work.result())
        if shared and blocking:
            await home.wait_answered(reply, None if deadline is None else max(0.0, deadline - home.loop.time()))
            if not reply.answered:
                raise reply.given_up(timeout)
            if reply.error is None:
                work = home.downloads.run(transfer.copy_out)
                await home.wait_done(work)
    except BaseException as error:
        reply.abandon()
        if transfer.drop():
            await home.wait_uncancelled(work, error)
        raise
    if shared and blocking:
        reply.wait()
    elif shared:
        reply.abandon()
        if report is not None:
            report(len(into), len(into))
    work.result()


def fillable(connection: LoopConnection, attachment: Attachment, into: memoryview) -> bool:
    """Checks whether the device can probably write to a piece of memory itself.

    Args:
        connection: The connection to the device.
        attachment: The attachment to use.
        into: The memory.

    Returns:
        True if it probably can.
    """
    return registered.shareable(into) and registered.likely(connection, attachment)
