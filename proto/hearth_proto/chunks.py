"""Encoding and decoding of transfer messages around their bytes, without copies through message objects.

Message objects would copy every byte two or three times more. The encoding is that of protobuf
(https://protobuf.dev/programming-guides/encoding/); the tests compare it with the generated classes.
"""

from __future__ import annotations

from hearth_proto.later import device_pb2

_UPLOAD_DATA = 0x22  # UploadRequest.data, length-delimited
_OFFSET = 0x08  # DownloadResponse.offset, varint
_DATA = 0x12  # DownloadResponse.data, length-delimited


def varint(value: int) -> bytes:
    """Returns the base-128 encoding of `value`, which must not be negative."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(view: memoryview | bytes, at: int) -> tuple[int, int]:
    """Returns the number encoded at index `at`, and the index after it.

    Raises `ValueError` if the message ends inside the number, or if it has more than the ten bytes that 64 bits take:
    decoding time would grow with the square of its length.
    """
    value = shift = 0
    end = min(len(view), at + 10)
    while at < end:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message ends inside a number" if end == len(view) else "a number has more than ten bytes")


def upload_request(head: bytes, data: memoryview) -> bytes:
    """Returns a serialized `UploadRequest` with the serialized other fields `head`. `data` is copied once."""
    return b"".join((head, bytes((_UPLOAD_DATA,)), varint(len(data)), data))


def upload_data(message: bytes) -> memoryview:
    """Returns the `data` of a serialized `UploadRequest`, without a copy if it is the only field.

    Raises `ValueError` for any other message.
    """
    view = memoryview(message)
    if view and view[0] == _UPLOAD_DATA:
        size, at = read_varint(view, 1)
        if at + size == len(view):
            return view[at:]
    from google.protobuf.message import DecodeError

    try:
        return memoryview(device_pb2.UploadRequest.FromString(message).data)
    except DecodeError as error:
        raise ValueError(f"the message is not an UploadRequest: {error}") from None


def download_head(offset: int, size: int) -> bytes:
    """Returns the bytes of a `DownloadResponse` before its `size` bytes of data."""
    return b"".join((bytes((_OFFSET,)), varint(offset), bytes((_DATA,)), varint(size)))


def download_response(message: bytes) -> tuple[int, memoryview]:
    """Returns offset and data of a serialized `DownloadResponse`, the data without a copy.

    Raises `ValueError` for any other message.
    """
    view = memoryview(message)
    offset, data, at = 0, view[:0], 0
    while at < len(view):
        tag = view[at]
        value, at = read_varint(view, at + 1)
        if tag == _OFFSET:
            offset = value
        elif tag == _DATA:
            data = view[at : at + value]
            at += value
            if len(data) != value:
                raise ValueError(f"{value} bytes of data are announced, but {len(data)} are present")
        else:  # a field of a newer daemon, or a different message
            return _any_download_response(message)
    return offset, data


def _any_download_response(message: bytes) -> tuple[int, memoryview]:
    from google.protobuf.message import DecodeError

    try:
        response = device_pb2.DownloadResponse.FromString(message)
    except DecodeError as error:
        raise ValueError(f"the message is not a DownloadResponse: {error}") from None
    return response.offset, memoryview(response.data)
