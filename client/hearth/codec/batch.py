"""Batches, put together from commands that were serialized when they were submitted.

Going through message objects would serialize every command again. The encoding is protobuf's own
(https://protobuf.dev/programming-guides/encoding/); the tests compare it with the generated classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hearth_proto.chunks import varint

_BATCH = b"\x12"  # ExecuteRequest.batch, length-delimited
_SEQ = b"\x08"  # Batch.seq, varint
_COMMANDS = b"\x12"  # Batch.commands, length-delimited
_REQUEST = b"\x08"  # Command.request, varint
_LAUNCHES = b"\x1a"  # Command.launches, length-delimited

_SHORT = tuple(bytes((size,)) for size in range(128))
"""The varints of one byte."""
FRAMING = 16
"""More than a tag and a length add to a command, and than the rest of a request adds to its commands."""
DONE = b"\x1a\x00"
"""Result.done, empty."""
_RESULT = 0x1A  # ExecuteResponse.result, length-delimited
_RESULT_REQUEST = 0x08  # Result.request, varint

_between: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}
"""Constant framing bytes of `run_request`, by the sizes of the variable parts; a client's requests have few sizes."""
_BETWEEN_LIMIT = 4096


def asking(request: int, command: bytes) -> bytes:
    """The serialized `command`, which has no request, with one."""
    return _REQUEST + number(request) + command


def number(value: int) -> bytes:
    """`varint`, quicker for what most are."""
    if value < 0x80:
        return _SHORT[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return varint(value)


def answered(response: bytes) -> tuple[int, bytes]:
    """The request that an `ExecuteResponse` has the result of, and the rest of the serialized `Result`. 0 where it is
    anything else, or a long one, or its number has more than 28 bits."""
    try:
        if response[0] == _RESULT and response[2] == _RESULT_REQUEST and response[1] == len(response) - 2 < 0x80:
            value = response[3]
            if value < 0x80:
                return value, response[4:]
            byte = response[4]
            value += (byte << 7) - 0x80
            if byte < 0x80:
                return value, response[5:]
            byte = response[5]
            value += (byte << 14) - (0x80 << 7)
            if byte < 0x80:
                return value, response[6:]
            byte = response[6]
            if byte < 0x80:
                return value + (byte << 21) - (0x80 << 14), response[7:]
    except IndexError:
        pass
    return 0, b""


def launches_command(records: Sequence[bytes], size: int) -> bytes:
    """A `Command` that carries `records`, `size` bytes together."""
    return b"".join((_LAUNCHES, varint(size), *records))


def batch_request(seq: int, commands: Sequence[bytes]) -> bytes:
    """An `ExecuteRequest` with one batch of serialized commands."""
    parts = [_SEQ, varint(seq)]
    for command in commands:
        size = len(command)
        parts += _COMMANDS, _SHORT[size] if size < 128 else varint(size), command
    body = b"".join(parts)
    return b"".join((_BATCH, varint(len(body)), body))


def run_request(seq: int, records: Sequence[bytes], size: int, command: bytes) -> bytes:
    """A request of a run of launches, `size` bytes together, unless there are none, and one command behind it."""
    numbered = number(seq)
    sizes = size, len(command), len(numbered)
    between = _between.get(sizes)
    if between is None:
        between = _put_between(*sizes)
    head, middle, tail = between
    return b"".join((head, numbered, middle, *records, tail, command))


def _put_between(run: int, command: int, seq: int) -> tuple[bytes, bytes, bytes]:
    launches = _LAUNCHES + varint(run)
    middle = _COMMANDS + varint(len(launches) + run) + launches if run else b""
    tail = _COMMANDS + varint(command)
    head = _BATCH + varint(len(_SEQ) + seq + len(middle) + run + len(tail) + command) + _SEQ
    if len(_between) >= _BETWEEN_LIMIT:
        _between.clear()
    _between[run, command, seq] = head, middle, tail
    return head, middle, tail
