"""The few messages that are hot, written and read without protobuf objects.

A batch is put together from commands that were serialized when they were submitted, and bulk data is cut from and
into the caller's memory: going through message objects would copy every byte two or three times more. The encoding is
protobuf's own (https://protobuf.dev/programming-guides/encoding/); the tests compare it with the generated classes.
"""

from __future__ import annotations

from collections.abc import Sequence

_BATCH = b"\x12"  # ExecuteRequest.batch, length-delimited
_SEQ = b"\x08"  # Batch.seq, varint
_COMMANDS = b"\x12"  # Batch.commands, length-delimited
_LAUNCHES = b"\x1a"  # Command.launches, length-delimited
_UPLOAD_DATA = b"\x22"  # UploadRequest.data, length-delimited
_OFFSET_TAG = 0x08  # DownloadResponse.offset, varint
_DATA_TAG = 0x12  # DownloadResponse.data, length-delimited

FRAMING = 16
"""More than a tag and a length add to a command, and than the rest of a request adds to its commands."""


def varint(value: int) -> bytes:
    """`value`, not negative, in base 128."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def launches_command(records: Sequence[bytes], size: int) -> bytes:
    """A `Command` that carries `records`, `size` bytes together."""
    return b"".join((_LAUNCHES, varint(size), *records))


def batch_request(seq: int, commands: Sequence[bytes]) -> bytes:
    """An `ExecuteRequest` with one batch of serialized commands."""
    parts = [b"", _SEQ, varint(seq)]
    for command in commands:
        parts.append(_COMMANDS)
        parts.append(varint(len(command)))
        parts.append(command)
    parts[0] = _BATCH + varint(sum(map(len, parts)))
    return b"".join(parts)


def upload_request(head: bytes, data: memoryview) -> bytes:
    """An `UploadRequest`: `head` is its other fields, serialized; `data` is copied once."""
    return b"".join((head, _UPLOAD_DATA, varint(len(data)), data))


def download_response(message: bytes) -> tuple[int, memoryview]:
    """(offset, data) of a `DownloadResponse`, the data in place. Raises ValueError where it is none."""
    view = memoryview(message)
    offset, data, at = 0, view[:0], 0
    while at < len(view):
        tag = view[at]
        value, at = _read_varint(view, at + 1)
        if tag == _OFFSET_TAG:
            offset = value
        elif tag == _DATA_TAG:
            data = view[at : at + value]
            at += value
            if len(data) != value:
                raise ValueError(f"{value} bytes of data are announced, {len(data)} are there")
        else:  # a field of a newer daemon, or no such message at all
            return _any_download_response(message)
    return offset, data


def _any_download_response(message: bytes) -> tuple[int, memoryview]:
    from google.protobuf.message import DecodeError

    from hearth_proto.v1 import device_pb2

    try:
        response = device_pb2.DownloadResponse.FromString(message)
    except DecodeError as error:
        raise ValueError(f"this is no DownloadResponse: {error}") from None
    return response.offset, memoryview(response.data)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(view):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message ends inside a number")
