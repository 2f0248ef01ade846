"""Copies between a device array and pinned host memory that a graph records: each launch of the graph repeats them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.transfer.shared_memory import SharedMemory
from hearth.transport.memory_segments import address_of, known_segments

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transfer.plan import BufferRegion


def record(
    direction: int,
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    data: memoryview,
    *,
    register: bool = True,
) -> bool:
    """Records a copy in the graph that is being captured from the part's stream.

    The graph keeps the memory registered. Other arrays never reuse it, because launches of the graph write to it at
    times that the client does not know.

    Args:
        direction: `UP`: from `data` to the device; `DOWN`: from the device to `data`.
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Part of the buffer, and the stream.
        data: The bytes.
        register: True to share the memory with the device process if it is not shared yet, which blocks meanwhile.

    Returns:
        False, with nothing recorded, if the bytes do not lie in memory that can be shared with the device process, or
        if the daemon is too old.
    """
    position = known_segments.find(address_of(data), len(data)) if connection.limits.graph_memory else None
    if position is None:
        return False
    memory = connection.part(SharedMemory)
    shared = memory.for_attachment(attachment) if register else memory.shared
    if shared is None or shared.attachment is not attachment:
        return False
    number = shared.number(position.segment) if register else shared.connection.number(position.segment)
    if not number:
        return False
    position.segment.spoiled = True
    attachment.submit(region.shared(direction, len(data), number, position.offset))
    return True
