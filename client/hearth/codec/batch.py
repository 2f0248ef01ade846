"""Encoding of batches from commands that were serialized when they were submitted.

Building message objects would serialize every command again. The encoding is that of protobuf
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
"""Varints of one byte, by their value."""
FRAMING = 16
"""Upper bound, in bytes, of what a tag and a length add to a command, and of what the rest of a request adds to its
commands."""
DONE = b"\x1a\x00"
"""A serialized `Result` whose field `done` is set and empty."""
_RESULT = 0x1A  # ExecuteResponse.result, length-delimited
_RESULT_REQUEST = 0x08  # Result.request, varint

_run_framing: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}
"""Constant framing bytes of `run_request`, by the sizes of the variable parts; the requests of a client have few
different sizes."""
_RUN_FRAMING_LIMIT = 4096


def with_request(request: int, command: bytes) -> bytes:
    """Adds a request number to a serialized command.

    Args:
        request: The number, which the answer repeats.
        command: The serialized command, which has no request number.

    Returns:
        The serialized command with the number.
    """
    return _REQUEST + number(request) + command


def number(value: int) -> bytes:
    """Encodes a varint, like `varint` but faster for small values."""
    if value < 0x80:
        return _SHORT[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return varint(value)


def parse_answer(response: bytes) -> tuple[int, bytes]:
    """Extracts the request number and the rest of the serialized `Result` from an `ExecuteResponse`.

    Returns 0 and no bytes if the response is of another kind or long, or the number has more than 28 bits.
    """
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
    """Encodes a `Command` that carries launch records.

    Args:
        records: The packed launches.
        size: Their size in bytes together.

    Returns:
        The serialized command.
    """
    return b"".join((_LAUNCHES, number(size), *records))


def batch_request(seq: int, commands: Sequence[bytes]) -> bytes:
    """Encodes an `ExecuteRequest` with one batch.

    Args:
        seq: Sequence number of the batch.
        commands: The serialized commands.

    Returns:
        The serialized request.
    """
    parts = [_SEQ, number(seq)]
    for command in commands:
        size = len(command)
        parts += _COMMANDS, _SHORT[size] if size < 128 else number(size), command
    body = b"".join(parts)
    return b"".join((_BATCH, number(len(body)), body))


def run_request(seq: int, records: Sequence[bytes], size: int, command: bytes) -> bytes:
    """Encodes an `ExecuteRequest` with one batch of a run of launches, followed by one command.

    Args:
        seq: Sequence number of the batch.
        records: The packed launches; may be empty.
        size: Their size in bytes together.
        command: The serialized command after them.

    Returns:
        The serialized request.
    """
    seq_bytes = number(seq)
    sizes = size, len(command), len(seq_bytes)
    framing = _run_framing.get(sizes)
    if framing is None:
        framing = _build_run_framing(*sizes)
    head, middle, tail = framing
    return b"".join((head, seq_bytes, middle, *records, tail, command))


def _build_run_framing(run: int, command: int, seq: int) -> tuple[bytes, bytes, bytes]:
    launches = _LAUNCHES + varint(run)
    middle = _COMMANDS + varint(len(launches) + run) + launches if run else b""
    tail = _COMMANDS + varint(command)
    head = _BATCH + varint(len(_SEQ) + seq + len(middle) + run + len(tail) + command) + _SEQ
    if len(_run_framing) >= _RUN_FRAMING_LIMIT:
        _run_framing.clear()
    _run_framing[run, command, seq] = head, middle, tail
    return head, middle, tail
