"""Mixed batch: a few commands without an answer, optionally followed by a Sync or a Read that the client waits for.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from hearth_proto.v1 import commands_pb2, device_pb2

MAX_COMMANDS = 16
"""Largest number of commands."""

MAX_BYTES = 16 << 10
"""Largest batch, in bytes. For a longer batch the inline path saves too little."""

_UNANSWERED = frozenset(("launches", "allocate", "free", "fill", "write"))


class MixedBatch(NamedTuple):
    """A decoded mixed batch."""

    unanswered: tuple[tuple[str, commands_pb2.Command], ...]
    """The commands without an answer, by kind."""
    kind: str
    """Kind of the last command: "sync" or "read"; empty if no command has an answer."""
    last: commands_pb2.Command
    """The command with an answer. The answer of a Read carries its bytes."""


_NONE = commands_pb2.Command()


def read(data: bytes, seq: int) -> MixedBatch | None:
    """Returns the batch in `data`, an encoded ExecuteRequest, if it is a mixed batch numbered `seq`; otherwise None.

    The last command of the batch must have an answer. `data` may be any message.
    """
    if len(data) > MAX_BYTES:
        return None
    try:
        batch = device_pb2.ExecuteRequest.FromString(data).batch
    except DecodeError:
        return None
    commands = batch.commands
    if batch.seq != seq or not 0 < len(commands) <= MAX_COMMANDS:
        return None
    last = commands[-1]
    kind = last.WhichOneof("kind")
    if not last.request or (kind != "sync" and not (kind == "read" and _returned_inline(last.read))):
        return None
    unanswered = []
    for command in commands[:-1]:
        command_kind = command.WhichOneof("kind") or ""
        if command.request or command_kind not in _UNANSWERED:
            return None
        unanswered.append((command_kind, command))
    return MixedBatch(tuple(unanswered), kind, last)


def alone(kind: str, command: commands_pb2.Command) -> MixedBatch:
    """Returns a batch that consists of this command."""
    if kind == "read" and command.request and _returned_inline(command.read):
        return MixedBatch((), kind, command)
    return MixedBatch(((kind, command),), "", _NONE)


def _returned_inline(read: commands_pb2.Read) -> bool:
    """True if the bytes of the Read are returned in the answer, as one range."""
    return not (read.transfer or read.HasField("shared") or read.HasField("rows"))
