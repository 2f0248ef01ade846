"""Choice of the route between host and device, and division into chunks; without I/O.

Small data travels inside a batch, in the order of the commands. Larger data travels separately, named by a transfer
number: over a separate stream, or in chunks over several connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth import lazy_numpy as np
from hearth.errors import TransferError
from hearth.transport.spin_wait import UP
from hearth_proto import chunks
from hearth_proto.later import commands_pb2
from hearth_proto.layouts import RowLayout

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.session.send_queue import Limits


STRIPED_BYTES = 8 << 20
"""Minimum size, in bytes, of a transfer that uses stripes if there are any. A smaller one would end before the stripes
have started."""
MAX_STRIPES = 8
"""Maximum number of stripes of one connection to a device, which is also limited to the client's number of cores
because each stripe keeps a core busy."""
_BYTES_A_STRIPE = 4 << 20
_CHUNKS_A_STRIPE = 4
_SMALLEST_CHUNK = 1 << 20

MIN_SHARED_BYTES = 64 << 10
"""Minimum size, in bytes, of a copy through shared memory. Smaller copies are as fast inside a batch."""
_BATCH_MARGIN = 256
"""Bytes reserved for the rest of the command and the batch around inline data."""


class BufferRegion(NamedTuple):
    """Region of a buffer that a copy on `stream` writes or reads.

    It begins at byte `offset`, or consists of the `rows` of a pitched layout.
    """

    stream: int
    buffer: int
    offset: int
    rows: RowLayout | None = None
    split: tuple[int, int] | None = None
    """Number and total size in bytes of the copy of which the region is a piece, so that the daemon cancels all pieces
    or none; None: one command copies everything."""
    recorded: bool = False
    """True if the stream is being recorded: its graph accepts a copy from or to memory that is shared with the device,
    unless the copy is to be waited for; the daemon refuses all others."""

    @property
    def plain(self) -> bool:
        """True for a range of bytes that one command copies."""
        return self.rows is None and self.split is None

    def write(self, size: int = 0) -> commands_pb2.Command:
        """Returns a write command to this region; the caller adds the source of the bytes.

        Args:
            size: Number of bytes; 0 if the command contains the bytes.
        """
        command = commands_pb2.Command(stream=self.stream)
        self._describe(command.write, size)
        return command

    def read(self, size: int) -> commands_pb2.Command:
        """Returns a command that reads this region; the caller adds the destination of the bytes.

        Args:
            size: Number of bytes.
        """
        command = commands_pb2.Command(stream=self.stream)
        self._describe(command.read, size)
        return command

    def shared(self, direction: int, size: int, segment: int, offset: int = 0) -> commands_pb2.Command:
        """Returns a command that copies between this region and memory that is shared with the device.

        Args:
            direction: `UP`: from the memory to this region; `DOWN`: from this region to the memory.
            size: Number of bytes.
            segment: Number of the memory's segment.
            offset: Offset in bytes in the segment.
        """
        command = self.write(size) if direction == UP else self.read(size)
        location = (command.write if direction == UP else command.read).shared
        location.segment, location.offset = segment, offset
        return command

    def _describe(self, message: commands_pb2.Write | commands_pb2.Read, size: int) -> None:
        message.buffer, message.offset, message.size = self.buffer, self.offset, size
        if self.rows is not None:
            message.rows.width, message.rows.rows, message.rows.pitch = self.rows[1:]
        if self.split is not None:
            message.split.number, message.split.size = self.split

    def skip(self, done: int) -> BufferRegion:
        """Returns the region after the first `done` bytes; for rows, after the complete rows among them.

        Args:
            done: Number of bytes.
        """
        if self.rows is None:
            return self._replace(offset=self.offset + done)
        done_rows = done // self.rows.width
        rows = self.rows._replace(
            offset=self.rows.offset + done_rows * self.rows.pitch, rows=self.rows.rows - done_rows
        )
        return self._replace(offset=self.offset + done_rows * rows.pitch, rows=rows)


def inline(size: int, limits: Limits) -> bool:
    """True if `size` bytes travel inside a batch.

    Args:
        size: Number of bytes.
        limits: Limits that the daemon has announced.
    """
    return size <= min(limits.max_inline_bytes, limits.max_batch_bytes - _BATCH_MARGIN)


MIN_RING_BYTES = 128 << 10
"""Minimum size, in bytes, of an ordinary array for which the ring is faster than a batch. At 1 MiB it takes a fifth of
the time (CPU)."""
_RING_AFTER_COPIES = 4
"""Number of such copies before memory is shared for them. Sharing takes as long as several copies, so a single copy
does not use it."""


def should_use_ring(connection: Connection, size: int) -> bool:
    """Counts a copy that might travel in a batch.

    Args:
        connection: Connection to the device, which counts them.
        size: Size of the copy in bytes.

    Returns:
        True if the copy should use the ring, provided that the ring has a slot available immediately.
    """
    if size < MIN_RING_BYTES:
        return False
    connection.ring_sized_copies += 1
    return connection.ring_sized_copies > _RING_AFTER_COPIES


def uses_rings(connection: Connection, size: int) -> bool:
    """Returns the result of `should_use_ring` for a copy that has already been counted.

    Args:
        connection: Connection to the device.
        size: Size of the copy in bytes.
    """
    return size >= MIN_RING_BYTES and connection.ring_sized_copies > _RING_AFTER_COPIES


def stripes(size: int, limit: int) -> int:
    """Returns the number of stripes for a transfer, from 0 (no stripes) to `limit`.

    Args:
        size: Size of the transfer in bytes.
        limit: Maximum number of stripes.
    """
    if size < STRIPED_BYTES:
        return 0
    return min(limit, size // _BYTES_A_STRIPE)


def stripe_chunk(size: int, count: int, max_chunk: int) -> int:
    """Returns the size, in bytes, of the chunks of a transfer: several for each stripe, so that all end together.

    The size is at least 1 MiB, unless `max_chunk` is smaller.

    Args:
        size: Size of the transfer in bytes.
        count: Number of stripes.
        max_chunk: Maximum size of a chunk in bytes, the daemon's limit.
    """
    share = size // (count * _CHUNKS_A_STRIPE)
    return min(max_chunk, max(_SMALLEST_CHUNK, 1 << max(0, share.bit_length() - 1)))


def host_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Returns the memory of a C-contiguous array as bytes, without a copy; writable if the array is."""
    if array.size == 0 or array.dtype.itemsize == 0:
        return memoryview(b"")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def upload_messages(
    head: bytes, data: memoryview, chunk: int, progress: Progress | None, offset: int = 0
) -> Iterator[bytes]:
    """Yields serialized `UploadRequest` messages for the bytes from `offset` on.

    Args:
        head: Serialized fields of the first message: session, device and transfer.
        data: All bytes of the transfer.
        chunk: Maximum number of bytes of one message.
        progress: Called after each message is taken, with the number of bytes and the total; None: not reported.
        offset: Offset in bytes of the first byte to send.
    """
    total = len(data)
    for start in range(offset, total, chunk):
        payload = data[start : start + chunk]
        yield chunks.upload_request(head if start == offset else b"", payload)
        if progress is not None:
            progress(min(start + chunk, total), total)


def remaining_progress(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Returns the callback for the rest of a transfer that begins by another route.

    Args:
        progress: Callback for the whole transfer; None: not reported.
        done: Number of bytes that the other route has moved.
        total: Size of the whole transfer in bytes.
    """
    if progress is None or not done:
        return progress
    return lambda more, _: progress(done + more, total)


def short(received: int, size: int, fix: str = "read the array again.") -> TransferError:
    """Returns the error of a transfer for which too few bytes arrived.

    Args:
        received: Number of bytes that arrived.
        size: Number of bytes that were requested.
        fix: What to do, as a sentence.
    """
    return TransferError(f"only {received} of {size} bytes arrived.", fix=fix)
