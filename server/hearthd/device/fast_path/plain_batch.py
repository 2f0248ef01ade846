"""The batch that whoever works step by step sends again and again: launches and a Sync, a Sync alone, or one copy.
Pure.

Read and answered without message objects, which would take longer than the launch. The encoding is protobuf's own
(https://protobuf.dev/programming-guides/encoding/); the tests compare both ways with the generated classes. What is
written in any other way, though it may mean the same, is left to those.
"""

from __future__ import annotations

from typing import NamedTuple

from hearth_proto.chunks import varint

_BATCH = _COMMANDS = 0x12  # ExecuteRequest.batch and Batch.commands, length-delimited
_SEQ = _REQUEST = 0x08  # Batch.seq and Command.request, varints
_STREAM = 0x10  # Command.stream, varint
_LAUNCHES = 0x1A  # Command.launches, length-delimited
_SYNCS = {b"\xc2\x01\x00": False, b"\xc2\x01\x02\x08\x01": True}
"""Command.sync, and whether that is of all streams."""

_COPIES = {0x32: "write", 0x3A: "read"}
"""Command.write and Command.read, length-delimited."""

ENDS = tuple(_SYNCS)
"""What every plain batch ends with."""

_DONE = b"\x1a\x00"  # Result.done
_RESULTS = tuple(bytes((0x1A, size + 3, 0x08)) for size in range(11))
"""ExecuteResponse.result up to the number in Result.request, by the bytes that this has."""

_SHORT = 0x80
"""What is shorter has a length of one byte."""

_MOST = 9
"""Bytes of a number: a longer one is not read here."""


class LoneCopy(NamedTuple):
    """What was found; the bytes of the Command are in `data`."""

    kind: str
    """Which one it looks like: there may be more fields behind it."""
    data: bytes
    request: bytes
    """The number under which it is answered, as it is written; empty: there is none, or it is for others to read."""
    rest: bytes
    """The Command without that number."""


class PlainBatch(NamedTuple):
    """What was read."""

    records: bytes
    """Packed launches, at least one; empty: there are none."""
    request: bytes
    """The number under which the Sync is answered, as it is written."""
    stream: int
    all_streams: bool


def read(data: bytes, seq: int) -> PlainBatch | None:
    """The ExecuteRequest in `data`, where it is a plain batch with this number; None: it may be anything."""
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
    except IndexError:  # also where it was no such thing from the beginning
        return None


def lone_copy(data: bytes, seq: int) -> LoneCopy | None:
    """The only Command of the ExecuteRequest in `data`, where that is a batch with this number and the command a Write
    or a Read; None: it may be anything."""
    try:
        start = rest = at = _only(data, seq)
        request = b""
        if data[at] == _REQUEST:
            at += 1
            while data[at] >= 0x80:
                at += 1
            at += 1
            if at - start <= _MOST + 1 and data[at - 1]:
                request, rest = data[start + 1 : at], at
        if data[at] == _STREAM:
            at += 1
            while data[at] >= 0x80:
                at += 1
            at += 1
        kind = _COPIES.get(data[at])
        return None if kind is None else LoneCopy(kind, data[start:], request, data[rest:])
    except IndexError:
        return None


def _only(data: bytes, seq: int) -> int:
    """Where the only command is. Raises IndexError where this is no batch with the number, or there are more."""
    at = _commands(data, seq)
    size, at = data[at], at + 1
    if size >= 0x80:
        size, at = size & 0x7F | data[at] << 7, at + 1
    if at + size != len(data):
        raise IndexError
    return at


def _commands(data: bytes, seq: int) -> int:
    """Where the length of the first command is. Raises IndexError where this is no batch with the number."""
    # Lengths have one byte or two here: what is longer is no short work.
    size, at = data[1], 2
    if size >= 0x80:
        size, at = size & 0x7F | data[2] << 7, 3
    if data[0] != _BATCH or size + at != len(data) or data[at] != _SEQ:
        raise IndexError
    start = at + 1
    found = byte = data[start]
    at = start + 1
    if byte >= 0x80:
        found &= 0x7F
        while byte >= 0x80:
            byte = data[at]
            found |= (byte & 0x7F) << 7 * (at - start)
            at += 1
    if found != seq or at - start > _MOST or data[at] != _COMMANDS:
        raise IndexError
    return at + 1


def _sync(data: bytes, start: int, records: bytes) -> PlainBatch | None:
    """What follows to the end is a Sync, from its number on. Raises IndexError where it ends in that."""
    at = start
    while data[at] >= 0x80:
        at += 1
    if at - start >= _MOST or not data[at]:  # 0 asks for nothing
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
    """The number that is written so."""
    value = 0
    for place, byte in enumerate(request):
        value |= (byte & 0x7F) << 7 * place
    return value


def only_sync(request: bytes, stream: int, all_streams: bool) -> PlainBatch:
    """A batch of nothing else."""
    return PlainBatch(b"", request, stream, all_streams)


def done(request: bytes) -> bytes:
    """The ExecuteResponse that says that it is done."""
    return _RESULTS[len(request)] + request + _DONE


def answered(request: bytes, rest: bytes) -> bytes:
    """The ExecuteResponse with the Result that has this number, as it is written, before the `rest` of its fields."""
    size = len(request) + len(rest) + 1
    if size >= _SHORT:
        raise ValueError(f"a result of {size} bytes; the most is {_SHORT - 1}")
    return bytes((0x1A, size, 0x08)) + request + rest


def read_answer(request: bytes, data: bytes | memoryview) -> bytes:
    """The ExecuteResponse with the Result that has this number, as it is written, and the bytes of a Read, at least
    one."""
    size = varint(len(data))
    inner = 2 + 2 * len(size) + len(data)
    read = varint(inner)
    outer = varint(2 + len(request) + len(read) + inner)
    return b"".join((b"\x1a", outer, b"\x08", request, b"\x22", read, b"\x0a", size, data, b"\x10", size))


def only_launches(data: bytes, seq: int) -> bool:
    """Whether the ExecuteRequest in `data` is seen to be a batch with this number of packed launches alone. What is
    longer than 16 KiB is not looked at."""
    try:
        return data[_only(data, seq)] == _LAUNCHES
    except IndexError:
        return False
