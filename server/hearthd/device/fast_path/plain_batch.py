"""Plain batch: launches and a Sync, a Sync alone, or one copy. Pure.

It is the most frequent batch of a client that launches and waits in a loop.

Such a batch is decoded and answered without message objects, which would take longer than the launch. The encoding is
that of protobuf (https://protobuf.dev/programming-guides/encoding/); the tests compare both directions with the
generated classes. Other encodings of the same messages are left to the generated classes.
"""

from __future__ import annotations

from typing import NamedTuple

from hearth_proto.chunks import varint

_BATCH = _COMMANDS = 0x12  # ExecuteRequest.batch and Batch.commands, length-delimited
_SEQ = _REQUEST = 0x08  # Batch.seq and Command.request, varints
_STREAM = 0x10  # Command.stream, varint
_LAUNCHES = 0x1A  # Command.launches, length-delimited
_SYNCS = {b"\xc2\x01\x00": False, b"\xc2\x01\x02\x08\x01": True}
"""Encodings of Command.sync; True: the Sync waits for all streams."""

_COPIES = {0x32: "write", 0x3A: "read"}
"""Tags of Command.write and Command.read, length-delimited."""

ENDS = tuple(_SYNCS)
"""Possible ends of a plain batch."""

_DONE = b"\x1a\x00"  # Result.done
_RESULTS = tuple(bytes((0x1A, size + 3, 0x08)) for size in range(11))
"""Prefix of an ExecuteResponse.result up to Result.request, indexed by the encoded size of the request number."""

_SHORT = 0x80
"""Lengths below this value are encoded in one byte."""

_MAX_VARINT = 9
"""Longest encoded number that is decoded here, in bytes."""


class LoneCopy(NamedTuple):
    """A Write or Read that is the only command of its batch. `data` is the encoded Command."""

    kind: str
    """Kind of the command, by its first field; more fields may follow."""
    data: bytes
    request: bytes
    """Request number, as an encoded varint; empty if there is none, or if it is too long to be decoded here."""
    body: bytes
    """The encoded Command without the request number."""


class PlainBatch(NamedTuple):
    """A decoded plain batch."""

    records: bytes
    """Packed launches; empty if there are none."""
    request: bytes
    """Request number of the Sync, as an encoded varint."""
    stream: int
    all_streams: bool


def read(data: bytes, seq: int) -> PlainBatch | None:
    """Returns the batch in `data`, an encoded ExecuteRequest, if it is a plain batch numbered `seq`; otherwise None.

    `data` may be any message.
    """
    try:
        at = _commands(data, seq)
        records = b""
        size, at = data[at], at + 1
        if size >= 0x80:
            size, at = size & 0x7F | data[at] << 7, at + 1
        if data[at] == _LAUNCHES:
            end = at + size
            size, at = data[at + 1], at + 2
            if size >= 0x80:
                size, at = size & 0x7F | data[at] << 7, at + 1
            if at + size != end or not size or data[end] != _COMMANDS:
                return None
            records = data[at:end]
            size, at = data[end + 1], end + 2
        if data[at] != _REQUEST or at + size != len(data):
            return None
        return _sync(data, at + 1, records)
    except IndexError:  # raised also if the data are no such message at all
        return None


def lone_copy(data: bytes, seq: int) -> LoneCopy | None:
    """Returns the only command of the batch in `data`, an encoded ExecuteRequest, if it is a Write or Read.

    Returns None if it is not, or if the batch is not numbered `seq`; `data` may be any message.
    """
    try:
        start = body_start = at = _only(data, seq)
        request = b""
        if data[at] == _REQUEST:
            at += 1
            while data[at] >= 0x80:
                at += 1
            at += 1
            if at - start <= _MAX_VARINT + 1 and data[at - 1]:
                request, body_start = data[start + 1 : at], at
        if data[at] == _STREAM:
            at += 1
            while data[at] >= 0x80:
                at += 1
            at += 1
        kind = _COPIES.get(data[at])
        return None if kind is None else LoneCopy(kind, data[start:], request, data[body_start:])
    except IndexError:
        return None


def _only(data: bytes, seq: int) -> int:
    """Returns the offset of the only command.

    Raises IndexError if the data are not a batch numbered `seq`, or if the batch has several commands.
    """
    at = _commands(data, seq)
    size, at = data[at], at + 1
    if size >= 0x80:
        size, at = size & 0x7F | data[at] << 7, at + 1
    if at + size != len(data):
        raise IndexError
    return at


def _commands(data: bytes, seq: int) -> int:
    """Returns the offset of the first command's length.

    Raises IndexError if the data are not a batch numbered `seq`.
    """
    # Only lengths of one or two bytes are decoded here; longer batches take the queued path.
    size, at = data[1], 2
    if size >= 0x80:
        size, at = size & 0x7F | data[2] << 7, 3
    if data[0] != _BATCH or size + at != len(data) or data[at] != _SEQ:
        raise IndexError
    start = at + 1
    batch_seq = byte = data[start]
    at = start + 1
    if byte >= 0x80:
        batch_seq &= 0x7F
        while byte >= 0x80:
            byte = data[at]
            batch_seq |= (byte & 0x7F) << 7 * (at - start)
            at += 1
    if batch_seq != seq or at - start > _MAX_VARINT or data[at] != _COMMANDS:
        raise IndexError
    return at + 1


def _sync(data: bytes, start: int, records: bytes) -> PlainBatch | None:
    """Decodes the Sync at the end of the data, starting with its request number.

    Raises IndexError if the data end too early.
    """
    at = start
    while data[at] >= 0x80:
        at += 1
    if at - start >= _MAX_VARINT or not data[at]:  # 0: the Sync has no answer
        return None
    at += 1
    request = data[start:at]
    stream = 0
    if data[at] == _STREAM:
        stream = data[at + 1]
        at += 2
        if stream >= 0x80:
            return None
    all_streams = _SYNCS.get(data[at:])
    return None if all_streams is None else PlainBatch(records, request, stream, all_streams)


def number(request: bytes) -> int:
    """Decodes a request number from an encoded varint."""
    value = 0
    for index, byte in enumerate(request):
        value |= (byte & 0x7F) << 7 * index
    return value


def only_sync(request: bytes, stream: int, all_streams: bool) -> PlainBatch:
    """Returns a batch that consists of one Sync."""
    return PlainBatch(b"", request, stream, all_streams)


def done(request: bytes) -> bytes:
    """Returns the encoded ExecuteResponse with a Done result for this request."""
    return _RESULTS[len(request)] + request + _DONE


def answered(request: bytes, fields: bytes) -> bytes:
    """Returns the encoded ExecuteResponse with a Result for this request.

    `request` and `fields`, the other fields of the Result, are encoded already. Raises ValueError if the Result is too
    large.
    """
    size = len(request) + len(fields) + 1
    if size >= _SHORT:
        raise ValueError(f"a result of {size} bytes; the maximum is {_SHORT - 1}")
    return bytes((0x1A, size, 0x08)) + request + fields


def read_answer(request: bytes, data: bytes | memoryview) -> bytes:
    """Returns the encoded ExecuteResponse with the Result of a Read, which contains `data`, at least one byte.

    `request` is encoded already.
    """
    size = varint(len(data))
    inner = 2 + 2 * len(size) + len(data)
    read = varint(inner)
    outer = varint(2 + len(request) + len(read) + inner)
    return b"".join((b"\x1a", outer, b"\x08", request, b"\x22", read, b"\x0a", size, data, b"\x10", size))


def only_launches(data: bytes, seq: int) -> bool:
    """True if the ExecuteRequest in `data` is a batch numbered `seq` that consists of packed launches.

    Always False for data longer than 16 KiB.
    """
    try:
        return data[_only(data, seq)] == _LAUNCHES
    except IndexError:
        return False
