"""Handles of dropped objects are freed, in any number."""

from __future__ import annotations

from collections import deque

from hearth.session.memory import DurableBuffers, Kind, Memory, Space, free_commands
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


def test_restored_buffers_move_to_the_new_space_and_lost_ones_are_no_longer_durable() -> None:
    old, new, durables = Space(1), Space(2), DurableBuffers()
    old.lost = True
    restored, lost, added = Memory(old, 1, 8), Memory(old, 2, 8), Memory(new, 3, 8)
    for memory in (restored, lost, added):  # the last was made durable while the first was restored
        durables.add(memory)
    durables.move([1, 9], new)
    assert restored.owner is restored.space is new and lost.space is old
    assert [memory in durables for memory in (restored, lost, added)] == [True, False, True]
    assert list(new.deferred_frees.handles) == [("buffer", 9)]  # no array refers to it
