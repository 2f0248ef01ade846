"""Copies between host memory and a device's buffer, by the fastest available route."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from hearth.codec import encode
from hearth.errors import HearthError
from hearth.session.reply import PendingResult, Reply
from hearth.transfer import plan
from hearth.transport.spin_wait import DOWN, UP

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transfer.grpc_stream import GrpcDownload, GrpcUpload
    from hearth.transfer.pinned_copy import PinnedCopy
    from hearth.transfer.plan import BufferRegion
    from hearth.transfer.striped import Striped
    from hearth_proto.v1 import commands_pb2

_CAUSE_S = 5.0
"""Seconds to wait for the command's answer, which contains the reason for which a transfer was cut short."""


def write(
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    data: memoryview,
    progress: Progress | None = None,
    *,
    blocking: bool = False,
    shared: bool = True,
) -> PinnedCopy | None:
    """Writes `data` to `region` of a buffer.

    When this returns, `data` has been read, except for memory that is shared with the device (`hearth.empty_pinned`):
    it is read in the order of the stream, unless `blocking`. Small writes, and writes of shared memory unless
    `blocking`, are one-way: their failures are late errors.

    Args:
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Destination in the buffer, and the stream.
        data: Contiguous bytes; their number is the size of the write.
        progress: Receives the number of bytes sent, and the total; None: not reported.
        blocking: True to wait until shared memory has been read.
        shared: True if shared memory may be used.

    Returns:
        A copy that repeats the same write; None: there is none.

    Raises:
        TransferError: A large write was cut short.
        HearthError: The daemon has refused a large write.
    """
    size = len(data)
    if size == 0:
        return None
    inline = plan.inline(size, attachment.session.limits)
    if region.recorded and not blocking and _captured(UP, connection, attachment, region, data):
        return None
    if shared and not region.recorded and size >= plan.MIN_SHARED_BYTES and _may_share(connection, inline, size):
        from hearth.transfer import shared as shared_transfer  # imported only for arrays that may need it

        done, copy, split = shared_transfer.move(
            UP, connection, attachment, region, data, None, progress, inline=inline, blocking=blocking
        )
        if done == size:
            return copy
        region = region.skip(done)._replace(split=split)
        data, progress = data[done:], plan.remaining_progress(progress, done, size)
    if inline:
        if region.plain:
            attachment.submit(encode.write(region.stream, region.buffer, region.offset, data))
        else:
            command = region.write()
            command.write.data = bytes(data)
            attachment.submit(command)
        if progress is not None:
            progress(size, size)
        return None
    number = connection.mint()
    with _aborting_if_interrupted(connection, number):
        reply = begin_upload(attachment, region, number, len(data))
        carry_upload(connection, attachment, reply, number, data, progress)
    return None


def _may_share(connection: Connection, inline: bool, size: int) -> bool:
    """True if memory shared with the device may be used.

    For data that might travel `inline`, this is so only if such copies are frequent, or if an array of this process may
    lie in shared memory, which requires the imported module.
    """
    return not inline or plan.should_use_ring(connection, size) or "hearth.transport.memory_segments" in sys.modules


def _captured(
    direction: int, connection: Connection, attachment: Attachment, region: BufferRegion, data: memoryview
) -> bool:
    """Records a copy of shared memory in a graph. Returns False if the memory is not shared."""
    if "hearth.transport.memory_segments" not in sys.modules:
        return False
    from hearth.transfer import shared

    return shared.record(direction, connection, attachment, region, data)


@contextlib.contextmanager
def _aborting_if_interrupted(connection: Connection, number: int) -> Iterator[None]:
    """Context in which a command that names a transfer is sent, and its bytes travel over separate streams.

    KeyboardInterrupt aborts the transfer at the daemon: the command, and all later work, would wait for the bytes.
    """
    try:
        yield
    except HearthError:
        raise
    except BaseException:
        _abort(connection, number)
        raise


def _abort(connection: Connection, number: int) -> None:
    from hearth.transfer.grpc_stream import cancel_transfer

    cancel_transfer(connection, number)


def begin_upload(attachment: Attachment, region: BufferRegion, number: int, size: int) -> Reply:
    """Sends a write command whose bytes travel separately. Returns its reply.

    Args:
        attachment: Attachment on which the buffer can be used.
        region: Destination in the buffer, and the stream.
        number: New number, of the transfer.
        size: Number of bytes.
    """
    command = region.write(size)
    command.write.transfer = number
    return attachment.request(command)


def carry_upload(
    connection: Connection,
    attachment: Attachment,
    reply: Reply,
    number: int,
    data: memoryview,
    progress: Progress | None,
) -> None:
    """Sends the bytes of a write that `begin_upload` began, and waits for its answer.

    Args:
        connection: Connection to the device.
        attachment: Attachment over which the command was sent.
        reply: Reply of the command.
        number: Number of the transfer.
        data: Bytes of the transfer.
        progress: Receives the number of bytes sent, and the total; None: not reported.

    Raises:
        HearthError: The transfer or the command failed.
    """
    from hearth.transfer import striping  # imported only for arrays that may need it

    open_upload = partial(striping.upload, connection, attachment, reply, number, data, progress)
    received = _carry(connection, reply, number, open_upload)
    if received != len(data):
        raise plan.short(received, len(data), "upload the array again.")


def _carry(
    connection: Connection,
    reply: Reply,
    number: int,
    open_transfer: Callable[[], GrpcUpload | GrpcDownload | Striped],
    timeout: float | None = None,
) -> int:
    """Transfers the bytes of a command over separate streams, and waits for its answer.

    If the streams cannot be opened, the transfer is aborted at the daemon. Returns the number of bytes.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        transfer = open_transfer()
    except BaseException:
        reply.abandon()
        _abort(connection, number)
        raise
    reply.on_error = transfer.cancel
    if reply.error is not None:
        transfer.cancel()
    try:
        received = transfer.result()
    except HearthError as error:
        raise cause_of(reply, error) from None
    except BaseException:
        reply.abandon()
        raise
    reply.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return received


def read(
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    into: memoryview,
    timeout: float | None = None,
    progress: Progress | None = None,
    *,
    blocking: bool = True,
) -> PinnedCopy | None:
    """Reads bytes of `region` of a buffer into `into`, after the earlier work on its stream.

    When this returns, `into` has been filled, except for memory that is shared with the device: it is filled in the
    order of the stream, unless `blocking`.

    Args:
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Source in the buffer, and the stream.
        into: Contiguous writable bytes; their number is the size of the read.
        timeout: Longest wait in seconds; None: without a limit.
        progress: Receives the number of bytes that have arrived, and the total; None: not reported.
        blocking: True to wait until shared memory has been filled.

    Returns:
        A copy that repeats the same read; None: there is none.

    Raises:
        BufferLostError: The buffer was lost with its device process.
        TimeoutError: The bytes have not arrived in time.
        TransferError: The read was cut short.
        HearthError: Earlier work of the stream failed.
    """
    size = len(into)
    connection.raise_deferred(region.stream, region.buffer)
    inline = plan.inline(size, attachment.session.limits)
    deadline = None if timeout is None else time.monotonic() + timeout
    if region.recorded and not blocking and _captured(DOWN, connection, attachment, region, into):
        return None
    if not region.recorded and size >= plan.MIN_SHARED_BYTES and _may_share(connection, inline, size):
        from hearth.transfer import shared as shared_transfer  # imported only for arrays that may need it

        done, copy, split = shared_transfer.move(
            DOWN, connection, attachment, region, into, timeout, progress, inline=inline, blocking=blocking
        )
        if done == size:
            return copy
        region = region.skip(done)._replace(split=split)
        into, progress = into[done:], plan.remaining_progress(progress, done, size)
    remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
    if inline:
        _request_read(attachment, region, into, progress).wait(remaining)
        return None
    number = connection.mint()
    with _aborting_if_interrupted(connection, number):
        reply = begin_download(attachment, region, number, len(into))
        carry_download(connection, attachment, reply, number, into, remaining, progress)
    return None


def reading(
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    into: memoryview,
    progress: Progress | None = None,
) -> PendingResult[None]:
    """Sends a read of a few bytes, which arrive in its answer. Returns the pending result, which fills `into`.

    Args:
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Source in the buffer, and the stream.
        into: Contiguous writable bytes; their number is the size of the read.
        progress: Called once the bytes have arrived; None: not reported.
    """
    connection.raise_deferred(region.stream)
    return _request_read(attachment, region, into, progress)


def _request_read(
    attachment: Attachment, region: BufferRegion, into: memoryview, progress: Progress | None
) -> PendingResult[None]:
    """Sends a read like `reading`, after deferred errors have been raised."""
    size = len(into)

    def read(result: commands_pb2.Result) -> None:
        if len(result.read.data) != size:
            raise plan.short(len(result.read.data), size)
        into[:] = result.read.data
        if progress is not None:
            progress(size, size)

    command = encode.read(region.stream, region.buffer, region.offset, size) if region.plain else region.read(size)
    return PendingResult(attachment.request(command, reports=True), read)


def begin_download(attachment: Attachment, region: BufferRegion, number: int, size: int) -> Reply:
    """Sends a read command whose bytes travel separately. Returns its reply.

    Args:
        attachment: Attachment on which the buffer can be used.
        region: Source in the buffer, and the stream.
        number: New number, of the transfer.
        size: Number of bytes.
    """
    command = region.read(size)
    command.read.transfer = number
    reply = attachment.request(command, reports=True)
    if reply.on_late_error is not None:
        reply.on_late_error = partial(_report_late, reply.on_late_error)
    return reply


def _report_late(report: Callable[[HearthError], None], error: HearthError) -> None:
    """Reports `error` as a late error, unless it only says that the read was aborted because its wait had ended.

    An earlier failure is always reported.
    """
    if error.reason != "TRANSFER_ABORTED" or error.failures:
        report(error)


def carry_download(
    connection: Connection,
    attachment: Attachment,
    reply: Reply,
    number: int,
    into: memoryview,
    timeout: float | None,
    progress: Progress | None,
) -> None:
    """Receives the bytes of a read that `begin_download` began. Afterwards nothing is written to `into`.

    Args:
        connection: Connection to the device.
        attachment: Attachment over which the command was sent.
        reply: Reply of the command.
        number: Number of the transfer.
        into: Destination of the bytes.
        timeout: Longest wait in seconds; None: without a limit.
        progress: Receives the number of bytes that have arrived, and the total; None: not reported.

    Raises:
        HearthError: The transfer or the command failed.
        TimeoutError: The bytes have not arrived in time.
    """
    from hearth.transfer import striping

    open_download = partial(striping.download, connection, attachment, reply, number, into, timeout, progress)
    received = _carry(connection, reply, number, open_download, timeout)
    if received != len(into):
        raise plan.short(received, len(into))


def cause_of(reply: Reply, error: HearthError) -> HearthError:
    """Returns the command's own error if it arrives within `_CAUSE_S` seconds, otherwise the transfer's `error`.

    Args:
        reply: Reply of the command; abandoned after a timeout of the transfer.
        error: Error of the transfer.
    """
    if error.reason == "DEADLINE_EXCEEDED":
        reply.abandon()
        return error
    try:
        reply.wait(_CAUSE_S)
    except HearthError as cause:
        return cause if cause.reason != "DEADLINE_EXCEEDED" else error
    return error
