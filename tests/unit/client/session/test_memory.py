"""Handles of dropped objects are freed, in any number."""

from __future__ import annotations

from collections import deque

from hearth.session.memory import Kind, free_commands
from hearth.session.send_queue import Limits
from hearth_proto.v1 import commands_pb2

MANY = 1_200_000


def buried(dead: deque[tuple[Kind, int]]) -> list[commands_pb2.Command]:
    return [commands_pb2.Command.FromString(command.SerializeToString()) for command in free_commands(dead)]


def test_every_command_fits_a_batch() -> None:
    first = 1 << 28  # large handles, encoded in five bytes, as in a long session
    dead: deque[tuple[Kind, int]] = deque(("buffer", handle) for handle in range(first, first + MANY))
    commands = buried(dead)
    assert not dead
    assert max(command.ByteSize() for command in commands) < Limits().max_batch_bytes // 4
    assert [handle for command in commands for handle in command.free.buffers] == list(range(first, first + MANY))


def test_buffers_are_freed_before_modules_and_streams() -> None:
    dead: deque[tuple[Kind, int]] = deque([("module", 1), ("buffer", 2), ("stream", 3), ("buffer", 4)])
    kinds = [command.WhichOneof("kind") for command in buried(dead)]
    assert kinds == ["free", "unload_module", "destroy_stream"]
    assert buried(dead) == []
