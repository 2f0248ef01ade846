"""The streams that carry bulk data: Upload and Download for Execute, and the single calls Write and Read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import DecodeError

from hearth_proto.chunks import read_varint, upload_data, upload_request
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front import errors
from hearthd.front.errors import Context
from hearthd.front.rpc.server_call import StatusError
from hearthd.front.rpc.unary import build_command, submit
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.transfers import Download, Upload

FRONT_TRANSFERS = 1 << 63
"""First transfer number that the front uses for its own transfers. Clients use lower numbers."""
SLACK = 4096
"""Bytes that a chunk's message may have in addition to its data."""
_DATA_TAG = 0x22
_CUT_DELAY_S = 0.01
"""Delay, in seconds, from the end of a stream until gRPC reports that it was cut off. Only uploads that are not
resumable wait for this."""

_transfer_numbers = itertools.count(FRONT_TRANSFERS)
OnBytes = Callable[[int, int], None]


def check_transfer(transfer: int) -> None:
    """Raises if the client's transfer number is 0 or one of the front's."""
    if not 0 < transfer < FRONT_TRANSFERS:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"Transfer {transfer} was requested; clients number transfers from 1 to {FRONT_TRANSFERS - 1}.",
            fix="Use the number that the Write or Read command named.",
            details={"requested": transfer, "allowed": f"1 to {FRONT_TRANSFERS - 1}"},
            fields=["transfer"],
        )


def parse_upload(message: bytes) -> device_pb2.UploadRequest:
    """Decodes a message of Upload. Raises `MALFORMED_MESSAGE`."""
    try:
        return device_pb2.UploadRequest.FromString(message)
    except DecodeError as error:
        raise errors.malformed(
            f"A message of Upload is not a valid UploadRequest: {error}.", "Send UploadRequest."
        ) from None


def data_length(message: bytes) -> int:
    """Returns the number of data bytes that an UploadRequest carries.

    If it has no other field, only its head is parsed.
    """
    if message and message[0] == _DATA_TAG:
        try:
            length, start = read_varint(message, 1)
        except ValueError:  # which `parse_upload` reports
            length = start = 0
        if start + length == len(message):
            return length
    return len(parse_upload(message).data)


def _stream_broken() -> Refusal:
    return Refusal(Reason.TRANSFER_ABORTED, "The client's stream ended before the transfer was complete.")


async def upload(
    first: bytes, head: device_pb2.UploadRequest, messages: AsyncIterator[bytes], channel: Channel, resume_s: float,
    max_chunk_bytes: int, on_bytes: OnBytes,
) -> device_pb2.UploadResponse:  # fmt: skip
    """Passes the messages of an Upload on, and answers when all of them were passed on.

    With `resume_s` (seconds) the upload is resumable: it may have begun on an earlier stream, and if this stream
    breaks, it waits that long for another.
    """
    if resume_s:
        resumed = channel.transfers.resumable_upload(head.transfer, resume_s, head.size, head.offset)
        if resumed is None:
            return device_pb2.UploadResponse(received=channel.transfers.status(head.transfer)[1])
        flow = resumed
    else:
        flow = channel.transfers.upload(head.transfer)
    skip = flow.skip(head.offset) if resume_s else 0
    stream = flow.assign_stream()

    async def pass_on() -> None:
        nonlocal skip
        message: bytes | None = first
        while message is not None:
            if len(message) > max_chunk_bytes + SLACK:
                raise errors.too_large("A message of Upload", len(message), max_chunk_bytes, "max_chunk_bytes")
            size = data_length(message)
            if skip:
                message, size, skip = _skip_data(message, size, skip)
            if size:
                await flow.send(message, size)
                on_bytes(size, 0)
            if flow.resumable and flow.passed >= flow.size:
                break
            message = await anext(messages, None)
        if not flow.resumable:
            await _wait_for_cut()
        elif flow.passed != flow.size:
            raise _incomplete(flow)
        await flow.finish()

    close_reason = _stream_broken()
    try:
        await flow.run(pass_on())
    except _Incomplete:
        raise
    except Refusal as refusal:
        close_reason = refusal
        flow.forbid_resume(stream)
        raise
    finally:
        flow.stream_ended(stream, close_reason)
    return device_pb2.UploadResponse(received=flow.passed)


class _Incomplete(Refusal):
    """The refusal of a stream that ended before the upload was complete, so that another stream can continue it."""


def _incomplete(flow: Upload) -> Refusal:
    if flow.passed > flow.size:
        return Refusal(
            Reason.INVALID_ARGUMENT,
            f"The upload announces {flow.size} bytes, but sent {flow.passed}.",
            fix="Set UploadRequest.size, in the first message, to the bytes of the whole transfer.",
            details={"requested": flow.passed, "allowed": flow.size},
            fields=["size"],
        )
    return _Incomplete(
        Reason.TRANSFER_ABORTED,
        f"The stream ended after {flow.passed} of {flow.size} bytes.",
        fix="Open another Upload with the same transfer and `offset`.",
        details={"received": flow.passed, "size": flow.size},
    )


def _skip_data(message: bytes, size: int, skip: int) -> tuple[bytes, int, int]:
    """Removes the first `skip` bytes of data.

    Returns the message, its remaining size and the number of bytes still to skip.
    """
    if size <= skip:
        return b"", 0, skip - size
    return upload_request(b"", upload_data(message)[skip:]), size - skip, 0


async def download(
    request: device_pb2.DownloadRequest, context: Context, channel: Channel, resume_s: float, on_bytes: OnBytes
) -> None:
    """Writes the chunks of a transfer to the client as they arrive. `resume_s` as in `upload`."""
    await _open(context)
    flow = channel.transfers.download(request.transfer, resume_s, request.offset)
    stream = flow.assign_stream()
    try:
        if resume_s:
            flow.resume_at(request.offset)
        await flow.run(_write_chunks(flow, context, on_bytes))
    finally:
        flow.stream_ended(stream, _stream_broken())


async def _wait_for_cut() -> None:
    """Returns if the client has half-closed its stream.

    A stream that was cancelled or cut off looks the same at first; its handler is cancelled a moment later, when gRPC
    reports it. This delay keeps a partial upload from being taken for a complete one.
    """
    await asyncio.sleep(_CUT_DELAY_S)


async def _open(context: Context) -> None:
    """Sends the initial metadata before any message.

    If the first write were cancelled instead, the call could not be ended: gRPC would have to send the initial metadata
    again, and the client would wait forever.
    """
    await context.send_initial_metadata(())


async def _write_chunks(flow: Download, context: Context, on_bytes: OnBytes) -> None:
    last = False
    while not last:
        payload, last = await flow.receive()
        if payload:
            await context.write(payload)
            on_bytes(0, len(payload))
        flow.on_written()


async def write(
    first: device_pb2.WriteRequest, messages: AsyncIterator[Any], channel: Channel, max_inline_bytes: int,
    max_chunk_bytes: int, on_bytes: OnBytes,
) -> commands_pb2.Done:  # fmt: skip
    """Implements the single call Write.

    The data are sent inline if the first message has all of them, otherwise with a transfer of the front.
    """
    command, stream = first.command, first.target.stream
    data = command.data + first.data
    size = command.size or len(data)
    rows = command.rows if command.HasField("rows") else None
    if len(data) == size <= max_inline_bytes:
        await _check_no_more_data(messages, size)
        inline = commands_pb2.Write(buffer=command.buffer, offset=command.offset, data=data, rows=rows)
        on_bytes(size, 0)
        return (await submit(channel, build_command("write", inline, stream))).done
    transfer = next(_transfer_numbers)
    announced = commands_pb2.Write(
        buffer=command.buffer, offset=command.offset, transfer=transfer, size=size, rows=rows
    )
    flow = channel.transfers.upload(transfer)
    result = asyncio.create_task(submit(channel, build_command("write", announced, stream)))
    sender = asyncio.create_task(flow.run(_send_chunks(flow, data, messages, size, max_chunk_bytes, on_bytes)))
    close_reason = _stream_broken()
    try:
        # If the command is refused, the upload ends. If the upload is refused, the command ends.
        await asyncio.wait({result, sender}, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            result.result()
        await sender
        return (await result).done
    except Refusal as refusal:
        close_reason = refusal
        if result.done():  # the error of the command is more specific than that of the transfer
            result.result()
        raise
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        flow.close(close_reason)
        result.cancel()
        await asyncio.gather(result, return_exceptions=True)


async def _send_chunks(
    flow: Upload, data: bytes, messages: AsyncIterator[Any], size: int, max_chunk_bytes: int, on_bytes: OnBytes
) -> None:
    sent = 0
    payload: bytes | None = data
    while payload is not None:
        if sent + len(payload) > size:
            raise _wrong_size(sent + len(payload), size)
        view = memoryview(payload)
        for start in range(0, len(payload), max_chunk_bytes):
            chunk = device_pb2.UploadRequest(data=bytes(view[start : start + max_chunk_bytes]))
            await flow.send(chunk.SerializeToString(), len(chunk.data))
        sent += len(payload)
        on_bytes(len(payload), 0)
        message = await anext(messages, None)
        payload = None if message is None else message.data
    if sent != size:
        raise _wrong_size(sent, size)
    await flow.finish()


async def _check_no_more_data(messages: AsyncIterator[Any], size: int) -> None:
    async for message in messages:
        if message.data:
            raise _wrong_size(size + len(message.data), size)


def _wrong_size(sent: int, size: int) -> Refusal:
    return Refusal(
        Reason.INVALID_ARGUMENT,
        f"Write.size announces {size} bytes, the stream carries {sent}{'' if sent < size else ' or more'}.",
        fix="Set Write.size, in the first message, to the number of bytes that follow.",
        details={"requested": sent, "allowed": size},
        fields=["command.size"],
    )


async def read(request: device_pb2.ReadRequest, context: Context, channel: Channel, on_bytes: OnBytes) -> None:
    """Implements the single call Read with a transfer of the front, whose chunks are passed on unchanged."""
    await _open(context)
    transfer = next(_transfer_numbers)
    command = build_command("read", request.command, request.target.stream)
    command.read.transfer = transfer
    flow = channel.transfers.download(transfer)
    result = asyncio.create_task(submit(channel, command))

    def on_result(task: asyncio.Task[commands_pb2.Result]) -> None:
        # A read that failed has no chunks, and an empty read may have none.
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Refusal):
                flow.on_abort(error)
            elif error is not None or not task.result().read.size:
                flow.on_chunk(b"", 1)

    result.add_done_callback(on_result)
    try:
        await flow.run(_write_chunks(flow, context, on_bytes))
        await result
    except Refusal:
        if result.done() and isinstance(result.exception(), StatusError):
            result.result()
        raise
    finally:
        flow.close(_stream_broken())
        result.cancel()
        await asyncio.gather(result, return_exceptions=True)
