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

MOST = 1 << 30
"""Maximum size, in bytes, of a transfer for which memory is taken from the pool. A larger one takes another route, in
pieces."""
_PIECE = 4 << 20
_LEAVE_S = 5.0
"""Seconds for which an interrupted caller waits for its copy helpers, each of which finishes one piece."""
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
    if not 0 < size <= MOST:
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
    there = memory(len(data)) if likely(connection, attachment) else None
    if there is None:
        return memoryview(bytes(data))
    copy(there, data)
    return there


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
        have to take another route.
    """
    shared = _shared(connection, attachment)
    if shared is None:
        return None
    if not shareable(data):
        there = memory(len(data))
        if there is None or not _registered(shared, there):
            return None
        copy(there, data)
        data = there
    return data if _place(shared, Kind.UPLOAD, number, data) else None


class Landing(NamedTuple):
    """Location of the bytes of a download when its command is answered."""

    memory: memoryview
    guaranteed: bool
    """True if the bytes will be in `memory`. Otherwise they have to be fetched by another route; only if that fails,
    and the command succeeds, they are in `memory`."""


def download(connection: Connection, attachment: Attachment, number: int, into: memoryview) -> Landing | None:
    """Makes the device copy the bytes of a transfer to shared memory. Does not wait for the device.

    Args:
        connection: Connection to the device.
        attachment: Attachment of the connection.
        number: Number of the transfer.
        into: Destination of the bytes; used directly if it can be shared.

    Returns:
        The location of the bytes, or None if the bytes have to take another route.
    """
    shared = _shared(connection, attachment)
    if shared is None:
        return None
    there = into if shareable(into) else memory(len(into))
    copy_of_bytes = there is not None and _place(shared, Kind.DOWNLOAD, number, there)
    return None if there is None or copy_of_bytes is False else Landing(there, bool(copy_of_bytes))


def mark_spoiled(data: memoryview) -> None:
    """Marks the segment as spoiled: the device may still write to it, and its completion is not reported."""
    place = known_segments.find(address_of(data), len(data))
    if place is not None:
        place.segment.spoiled = True


def _shared_memory(connection: Connection) -> SharedMemory:
    from hearth.transfer.shared_memory import SharedMemory  # imported only for large arrays

    return connection.part(SharedMemory)


def _shared(connection: Connection, attachment: Attachment) -> Shared | None:
    """Returns the memory shared for the attachment, if transfers may use it, else None.

    Blocks while sharing is set up.
    """
    if not likely(connection, attachment):
        return None
    shared = _shared_memory(connection).for_attachment(attachment)
    return shared if shared is not None and shared.transfers else None


def _registered(shared: Shared, data: memoryview) -> bool:
    place = known_segments.find(address_of(data), len(data))
    return place is not None and shared.number(place.segment) > 0


def _place(shared: Shared, kind: Kind, number: int, data: memoryview) -> bool | None:
    """Places the transfer at `data`; returns None if the outcome is unknown."""
    from hearth.transport.segments import ConnectionLost

    place = known_segments.find(address_of(data), len(data))
    if place is None:
        return False
    try:
        return shared.place(kind, number, place, len(data))
    except ConnectionLost:
        return None


# ---- copies ----


def copy(into: memoryview, since: memoryview) -> None:
    """Copies bytes, unless source and destination are the same memory.

    Uses several threads for large copies; no helper thread accesses the memory after this returns.

    Args:
        into: Destination; its size determines the number of bytes.
        since: Source.
    """
    size = len(into)
    if address_of(into) == address_of(since):
        return
    to, source = np.frombuffer(into, np.uint8), np.frombuffer(since, np.uint8)
    pieces = itertools.count(0, _PIECE)  # `next` is atomic among threads
    over: list[bool] = []

    def work() -> None:
        while not over and (start := next(pieces)) < size:
            to[start : start + _PIECE] = source[start : start + _PIECE]

    helpers = crew.help(work, min(threads(), -(-size // _PIECE)) - 1)
    try:
        work()
        helpers.dismiss()
    except BaseException:  # KeyboardInterrupt
        over.append(True)
        helpers.dismiss(_LEAVE_S)
        raise
