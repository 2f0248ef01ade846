"""Copies between host memory and a device process of this host: by one command for a segment, else by the ring.

The result is the number of bytes that were moved, from the beginning; the rest must take another route. For memory in
a segment, it contains a prepared copy that repeats the same transfer. A copy for a segment may be recorded in a graph,
whose launches repeat it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hearth.transfer import plan
from hearth.transfer.pinned_copy import PinnedCopy
from hearth.transfer.shared_memory import SharedMemory
from hearth.transport.memory_segments import address_of, known_segments
from hearth.transport.spin_wait import UP

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transfer.plan import BufferRegion


class Moved(NamedTuple):
    """Result of a transfer through shared memory."""

    bytes: int = 0
    copy: PinnedCopy | None = None
    """Prepared copy of all bytes, for repetition; None: there is none."""
    split: tuple[int, int] | None = None
    """`BufferRegion.split` of the bytes that were not moved."""


NOTHING = Moved()


def move(
    direction: int,
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    data: memoryview,
    timeout: float | None,
    progress: Progress | None,
    *,
    inline: bool,
    blocking: bool,
) -> Moved:
    """Uploads `data`, or downloads into it.

    When this returns, memory in a segment has not been read or filled yet, unless `blocking`.

    Args:
        direction: `UP` or `DOWN`.
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Part of the buffer, and the stream.
        data: Bytes to upload, or the destination of a download.
        timeout: Longest wait in seconds; None: without a limit. Ordinary memory is uploaded without a limit.
        progress: Receives the number of bytes moved, and the total; None: not reported.
        inline: True if the bytes may also travel in a batch, and do if the ring has not been used frequently or has no
            free slot.
        blocking: True to wait until memory in a segment has been read or filled.
    """
    position = known_segments.find(address_of(data), len(data))
    if position is None and inline and not plan.uses_rings(connection, len(data)):
        return NOTHING
    shared = connection.part(SharedMemory).for_attachment(attachment)
    if shared is None:
        return NOTHING
    number = 0 if position is None else shared.number(position.segment)
    if position is not None and number:
        copy = PinnedCopy(direction, connection, shared, region, position, number, len(data))
        if not blocking:
            copy.begin(data)
        elif not copy.run(data, timeout):
            return NOTHING
        if progress is not None:
            progress(copy.size, copy.size)
        return Moved(copy.size, copy)
    if inline and (position is not None or not shared.ring.ready):
        return NOTHING
    from hearth.transfer.ring_copy import RingDownload, RingUpload  # imported only for ordinary arrays

    host = np.frombuffer(data, np.uint8)
    transfer = (
        RingUpload(connection, shared, region, host, progress, waits=not inline)
        if direction == UP
        else RingDownload(connection, shared, region, host, progress, timeout)
    )
    return Moved(transfer.run(), split=transfer.split)


def record(
    direction: int,
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    data: memoryview,
    *,
    register: bool = True,
) -> bool:
    """Records a copy in the graph that is being captured from the region's stream.

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
