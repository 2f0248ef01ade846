"""Copies between host memory and a device process of this host: by one command for a segment, else by the ring.

Each function returns the number of bytes that it has moved, from the beginning; the rest has to take another route. For
memory in a segment, it also returns a prepared copy that repeats the same transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hearth.transfer import plan
from hearth.transfer.pinned_copy import PinnedCopy
from hearth.transfer.shared_memory import SharedMemory
from hearth.transport.memory_segments import address_of, known_segments
from hearth.transport.spin_wait import DOWN, UP

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


def write(
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    data: memoryview,
    progress: Progress | None,
    *,
    inline: bool,
    blocking: bool,
) -> Moved:
    """Uploads `data`.

    When this returns, memory in a segment has not been read yet, unless `blocking`.

    Args:
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Destination in the buffer, and the stream.
        data: Bytes to upload.
        progress: Receives the number of bytes sent, and the total; None: not reported.
        inline: True if `data` may also travel in a batch, and does if the ring has not been used frequently or has no
            free slot.
        blocking: True to wait until memory in a segment has been read.
    """
    position = known_segments.find(address_of(data), len(data))
    if position is None and inline and not plan.uses_rings(connection, len(data)):
        return NOTHING
    shared = connection.part(SharedMemory).for_attachment(attachment)
    if shared is None:
        return NOTHING
    number = 0 if position is None else shared.number(position.segment)
    if position is not None and number:
        copy = PinnedCopy(UP, connection, shared, region, position, number, len(data))
        return _pinned(copy, data, None, progress, blocking)
    if inline and (position is not None or not shared.ring.ready):
        return NOTHING
    from hearth.transfer import ring_copy  # imported only for ordinary arrays

    upload = ring_copy.RingUpload(connection, shared, region, np.frombuffer(data, np.uint8), progress, waits=not inline)
    return Moved(upload.run(), split=upload.split)


def read(
    connection: Connection,
    attachment: Attachment,
    region: BufferRegion,
    into: memoryview,
    timeout: float | None,
    progress: Progress | None,
    *,
    inline: bool,
    blocking: bool,
) -> Moved:
    """Downloads into `into`.

    When this returns, memory in a segment has not been filled yet, unless `blocking`.

    Args:
        connection: Connection to the device.
        attachment: Attachment on which the buffer can be used.
        region: Source in the buffer, and the stream.
        into: Destination of the bytes.
        timeout: Longest wait in seconds; None: without a limit.
        progress: Receives the number of bytes that have arrived, and the total; None: not reported.
        inline: True if the bytes may also travel in a batch; see `write`.
        blocking: True to wait until memory in a segment has been filled.
    """
    position = known_segments.find(address_of(into), len(into))
    if position is None and inline and not plan.uses_rings(connection, len(into)):
        return NOTHING
    shared = connection.part(SharedMemory).for_attachment(attachment)
    if shared is None:
        return NOTHING
    number = 0 if position is None else shared.number(position.segment)
    if position is not None and number:
        copy = PinnedCopy(DOWN, connection, shared, region, position, number, len(into))
        return _pinned(copy, into, timeout, progress, blocking)
    if inline and (position is not None or not shared.ring.ready):
        return NOTHING
    from hearth.transfer import ring_copy

    download = ring_copy.RingDownload(connection, shared, region, np.frombuffer(into, np.uint8), progress, timeout)
    return Moved(download.run(), split=download.split)


def _pinned(
    copy: PinnedCopy, memory: memoryview, timeout: float | None, progress: Progress | None, blocking: bool
) -> Moved:
    if not blocking:
        copy.begin(memory)
    elif not copy.run(memory, timeout):
        return NOTHING
    if progress is not None:
        progress(copy.size, copy.size)
    return Moved(copy.size, copy)
