"""Transfers through memory that is shared with a device process of this host.

The command names the transfer, and is ordered like other commands; the location of its bytes is sent separately, over
the connection of the shared memory. No bytes are sent: the device copies from the location or to it, and the command's
answer confirms that. Bytes in a segment are not moved; other bytes are copied to memory from the pool of segments, or
from it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hearth.transfer.copy_threads import crew, threads
from hearth.transport import memory_segments
from hearth.transport.memory_segments import address_of, known_segments
from hearth.transport.segment_pool import pool
from hearth_proto.frames import Kind

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transfer.shared_memory import Shared, SharedMemory
    from hearth.transport.memory_segments import SegmentPosition

MAX_BYTES = 1 << 30
"""Maximum size, in bytes, of a transfer for which memory is taken from the pool. A larger one takes another route, in
pieces."""
_PIECE_BYTES = 4 << 20
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def likely(connection: Connection, attachment: Attachment) -> bool:
    """True if there may be memory that is shared with the device. Does not block.

    Args:
        connection: Connection to the device.
        attachment: Attachment of the connection.
    """
    if not (connection.transport.lanes and memory_segments.possible()):
        return False
    return not _shared_memory(connection).unavailable(attachment)


def memory(size: int) -> memoryview | None:
    """Returns `size` bytes of uninitialized memory that can be shared; None if there is none. Does not block."""
    if not 0 < size <= MAX_BYTES:
        return None
    try:
        return memoryview(np.asarray(pool.lease(size))[:size])  # type: ignore[arg-type]
    except OSError:
        return None


def copy_of_bytes(connection: Connection, attachment: Attachment, data: memoryview) -> memoryview:
    """Returns a copy of the bytes, in memory that can be shared if that may be useful.

    Args:
        connection: Connection to the device.
        attachment: Attachment of the connection.
        data: Bytes to copy.
    """
    copied = memory(len(data)) if likely(connection, attachment) else None
    if copied is None:
        return memoryview(bytes(data))
    copy(copied, data)
    return copied


def shareable(data: memoryview) -> bool:
    """True if the bytes lie in memory that can be shared."""
    return bool(data) and known_segments.find(address_of(data), len(data)) is not None


def upload(connection: Connection, attachment: Attachment, number: int, data: memoryview) -> memoryview | None:
    """Makes the device copy the bytes of a transfer from shared memory. Does not wait for the device.

    Args:
        connection: Connection to the device.
        attachment: Attachment of the connection.
        number: Number of the transfer.
        data: Bytes of the transfer; copied to shared memory unless they lie in it.

    Returns:
        The memory from which the device copies, which must not change until the command is answered; None: the bytes
        must take another route.
    """
    found = _memory_for(connection, attachment, data)
    if found is None:
        return None
    shared, source, position = found
    copy(source, data)
    return source if shared.place(Kind.UPLOAD, number, position, len(data)) else None


class DownloadLocation(NamedTuple):
    """Location of the bytes of a download when its command is answered."""

    memory: memoryview
    guaranteed: bool
    """True if the bytes will be in `memory`. Otherwise they must be fetched by another route; only if that fails, and
    the command succeeds, they are in `memory`."""


def download(connection: Connection, attachment: Attachment, number: int, into: memoryview) -> DownloadLocation | None:
    """Makes the device copy the bytes of a transfer to shared memory. Does not wait for the device.

    Args:
        connection: Connection to the device.
        attachment: Attachment of the connection.
        number: Number of the transfer.
        into: Destination of the bytes; used directly if it can be shared.

    Returns:
        The location of the bytes, or None if the bytes must take another route.
    """
    found = _memory_for(connection, attachment, into)
    if found is None:
        return None
    shared, destination, position = found
    placed = shared.place(Kind.DOWNLOAD, number, position, len(into))
    return None if placed is False else DownloadLocation(destination, bool(placed))


def mark_spoiled(data: memoryview) -> None:
    """Marks the segment as spoiled: the device may still write to it, and its completion is not reported."""
    position = known_segments.find(address_of(data), len(data))
    if position is not None:
        position.segment.spoiled = True


def _shared_memory(connection: Connection) -> SharedMemory:
    from hearth.transfer.shared_memory import SharedMemory  # imported only for large arrays

    return connection.part(SharedMemory)


def _memory_for(
    connection: Connection, attachment: Attachment, data: memoryview
) -> tuple[Shared, memoryview, SegmentPosition] | None:
    """Returns registered memory for the bytes of a transfer: `data` itself if it can be shared, else new memory.

    Returns None if there is none, or if transfers cannot use it. Blocks while sharing is set up.
    """
    if not likely(connection, attachment):
        return None
    shared = _shared_memory(connection).for_attachment(attachment)
    if shared is None or not shared.transfers:
        return None
    source = data if shareable(data) else memory(len(data))
    position = shared.position(source) if source is not None else None
    return (shared, source, position) if source is not None and position is not None else None


# ---- copies ----


def copy(destination: memoryview, source: memoryview) -> None:
    """Copies bytes, unless source and destination are the same memory.

    Uses several threads for large copies; no helper thread accesses the memory after this returns.

    Args:
        destination: Destination; its size determines the number of bytes.
        source: Source.
    """
    size = len(destination)
    if address_of(destination) == address_of(source):
        return
    destination_bytes, source_bytes = np.frombuffer(destination, np.uint8), np.frombuffer(source, np.uint8)
    pieces = itertools.count(0, _PIECE_BYTES)  # `next` is atomic among threads
    stopped: list[bool] = []

    def work() -> None:
        while not stopped and (start := next(pieces)) < size:
            destination_bytes[start : start + _PIECE_BYTES] = source_bytes[start : start + _PIECE_BYTES]

    crew.run(work, min(threads(), -(-size // _PIECE_BYTES)) - 1, lambda _: stopped.append(True))
