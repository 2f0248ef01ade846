"""What has died is given back, however much it is."""

from __future__ import annotations

from collections import deque

from hearth.memory import Kind, burials
from hearth.outgoing import Limits

MANY = 1_200_000


def test_every_command_fits_a_batch() -> None:
    first = 1 << 28  # handles of five bytes, late in a long life
    dead: deque[tuple[Kind, int]] = deque(("buffer", handle) for handle in range(first, first + MANY))
    commands = burials(dead)
    assert not dead
    assert max(command.ByteSize() for command in commands) < Limits().max_batch_bytes // 4
    assert [handle for command in commands for handle in command.free.buffers] == list(range(first, first + MANY))


def test_buffers_go_before_what_they_were_used_with() -> None:
    dead: deque[tuple[Kind, int]] = deque([("module", 1), ("buffer", 2), ("stream", 3), ("buffer", 4)])
    kinds = [command.WhichOneof("kind") for command in burials(dead)]
    assert kinds == ["free", "unload_module", "destroy_stream"]
    assert burials(dead) == []
