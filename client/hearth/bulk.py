"""Host memory to and from a device's buffer, over the best way there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth import transfer
from hearth.errors import HearthError, TransferError
from hearth_proto.layouts import Rows
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.attachment import Attachment
    from hearth.connection import Connection
    from hearth.progress import Progress
    from hearth.reply import Reply

_CAUSE_S = 5.0
"""How long to wait for the command's own answer, which says why a transfer was cut short."""


def write(
    connection: Connection,
    attachment: Attachment,
    stream: int,
    buffer: int,
    offset: int,
    data: memoryview,
    progress: Progress | None = None,
    *,
    rows: Rows | None = None,
) -> None:
    """Writes `data` to `buffer` from byte `offset` on, in the order of `stream`; `data` is taken when this returns.

    `rows`: into these, one behind the other in `data`.

    Raises `TransferError` and what the daemon refuses of a large write; a small one is sent one way.
    """
    size = len(data)
    if size == 0:
        return
    command = commands_pb2.Command(stream=stream)
    command.write.buffer = buffer
    command.write.offset = offset
    if rows is not None:
        name_rows(command.write.rows, rows)
    if transfer.inline(size, attachment.session.limits):
        command.write.data = bytes(data)
        attachment.submit(command)
        if progress is not None:
            progress(size, size)
        return
    from hearth import striping  # small arrays do without

    number = connection.mint()
    command.write.transfer = number
    command.write.size = size
    reply = attachment.request(command)
    upload = striping.upload(connection, attachment, reply, number, data, progress)
    reply.on_error = upload.cancel
    if reply.error is not None:
        upload.cancel()
    try:
        received = upload.result()
    except HearthError as error:
        raise cause_of(reply, error) from None
    except BaseException:
        reply.abandon()
        raise
    reply.wait()
    if received != size:
        raise TransferError(
            f"{received} of {size} bytes arrived.", reason="TRANSFER_ABORTED", fix="upload the array again."
        )


def read(
    connection: Connection,
    attachment: Attachment,
    stream: int,
    buffer: int,
    offset: int,
    into: memoryview,
    timeout: float | None = None,
    progress: Progress | None = None,
    *,
    rows: Rows | None = None,
) -> None:
    """Reads `len(into)` bytes of `buffer` from byte `offset` on, after the work before it on `stream`.

    `rows`: out of these, one behind the other in `into`. Raises what failed on the stream before, `BufferLostError`,
    `TransferError`, or `TimeoutError`.
    """
    size = len(into)
    connection.raise_deferred()
    command = commands_pb2.Command(stream=stream)
    command.read.buffer = buffer
    command.read.offset = offset
    command.read.size = size
    if rows is not None:
        name_rows(command.read.rows, rows)
    if transfer.inline(size, attachment.session.limits):
        result = connection.report(command, attachment=attachment, timeout=timeout)
        if len(result.read.data) != size:
            raise short(len(result.read.data), size)
        into[:] = result.read.data
        if progress is not None:
            progress(size, size)
        return
    from hearth import striping

    number = connection.mint()
    command.read.transfer = number
    reply = attachment.request(command, reports=True)
    download = striping.download(connection, attachment, reply, number, into, timeout)
    reply.on_error = download.cancel
    if reply.error is not None:
        download.cancel()
    try:
        received = download.into(into, progress)
    except HearthError as error:
        raise cause_of(reply, error) from None
    except BaseException:
        reply.abandon()
        raise
    reply.wait()
    if received != size:
        raise short(received, size)


def name_rows(message: commands_pb2.Rows, rows: Rows) -> None:
    """Fills the message in."""
    message.width, message.rows, message.pitch = rows.width, rows.rows, rows.pitch


def cause_of(reply: Reply, error: HearthError) -> HearthError:
    """The command's own error, where it comes soon; else the transfer's."""
    if error.reason == "DEADLINE_EXCEEDED":
        reply.abandon()
        return error
    try:
        reply.wait(_CAUSE_S)
    except HearthError as cause:
        return cause if cause.reason != "DEADLINE_EXCEEDED" else error
    return error


def short(received: int, size: int) -> TransferError:
    return TransferError(f"{received} of {size} bytes arrived.", reason="TRANSFER_ABORTED", fix="read the array again.")
