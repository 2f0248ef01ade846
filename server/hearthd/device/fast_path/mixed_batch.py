"""The batch of who works step by step and does more than to launch: a few commands that nobody waits for, and perhaps a
Sync or a Read that somebody does. Pure."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from hearth_proto.v1 import commands_pb2, device_pb2

MOST = 16
"""Commands of one."""

LONGEST = 16 << 10
"""Bytes of one: what is longer takes its time anyway."""

_BEFORE = frozenset(("launches", "allocate", "free", "fill", "write"))


class MixedBatch(NamedTuple):
    """What was read."""

    before: tuple[tuple[str, commands_pb2.Command], ...]
    """What is not answered, by kind."""
    kind: str
    """Of the last one: "sync" or "read"; empty: there is none."""
    last: commands_pb2.Command
    """It is answered. A Read's bytes come with that."""


_NONE = commands_pb2.Command()


def read(data: bytes, seq: int) -> MixedBatch | None:
    """The ExecuteRequest in `data`, where it is such a batch with this number, and somebody waits for its end; None: it
    may be anything."""
    if len(data) > LONGEST:
        return None
    try:
        batch = device_pb2.ExecuteRequest.FromString(data).batch
    except DecodeError:
        return None
    commands = batch.commands
    if batch.seq != seq or not 0 < len(commands) <= MOST:
        return None
    last = commands[-1]
    kind = last.WhichOneof("kind")
    if not last.request or (kind != "sync" and not (kind == "read" and _inside(last.read))):
        return None
    before = []
    for command in commands[:-1]:
        what = command.WhichOneof("kind") or ""
        if command.request or what not in _BEFORE:
            return None
        before.append((what, command))
    return MixedBatch(tuple(before), kind, last)


def alone(kind: str, command: commands_pb2.Command) -> MixedBatch:
    """One command as a batch of its own."""
    if kind == "read" and command.request and _inside(command.read):
        return MixedBatch((), kind, command)
    return MixedBatch(((kind, command),), "", _NONE)


def _inside(read: commands_pb2.Read) -> bool:
    """Whether its bytes come with the answer, one behind the other."""
    return not (read.transfer or read.HasField("shared") or read.HasField("rows"))
