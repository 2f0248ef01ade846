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


def asking(request: int, command: bytes) -> bytes:
    """The serialized `command`, which has no request, with one."""
    return _REQUEST + varint(request) + command


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
