"""Which way bytes go between host and device, and how they are cut: no I/O here.

Small ones travel inside a batch, in the order of the commands; larger ones beside it, named by a transfer number: on a
stream of their own, or cut into chunks over several connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth import lazy_numpy as np
from hearth.errors import TransferError
from hearth_proto import chunks
from hearth_proto.later import commands_pb2
from hearth_proto.layouts import RowLayout

if TYPE_CHECKING:
    from typing import Protocol

    from hearth.progress import Progress
    from hearth.session.send_queue import Limits

    class Copies(Protocol):
        """Connection that counts its copies of `MIDDLING` bytes or more."""

        middling_copies: int


STRIPED_BYTES = 8 << 20
"""Size in bytes from which transfers use stripes where there are some: a smaller one is over before they have
started."""
MOST_STRIPES = 8
"""Most stripes of one connection to a device, and no more than the client has cores: each keeps one busy."""
_BYTES_A_STRIPE = 4 << 20
_CHUNKS_A_STRIPE = 4
_SMALLEST_CHUNK = 1 << 20

SHARED_LEAST = 64 << 10
"""Memory that is shared with the device need not be, for smaller copies: inside a batch they are as fast."""
_BATCH_MARGIN = 256
"""Room for the rest of the command and the batch around inline data."""


class BufferPart(NamedTuple):
    """The part of a buffer that a copy writes or reads, in the order of `stream`: from byte `offset` on, or `rows`."""

    stream: int
    buffer: int
    offset: int
    rows: RowLayout | None = None

    def write(self) -> commands_pb2.Command:
        """A write there, its bytes still to be named."""
        command = commands_pb2.Command(stream=self.stream)
        command.write.buffer = self.buffer
        command.write.offset = self.offset
        if self.rows is not None:
            _name_rows(command.write.rows, self.rows)
        return command

    def read(self, size: int) -> commands_pb2.Command:
        """A read of its `size` bytes, where to still to be named."""
        command = commands_pb2.Command(stream=self.stream)
        command.read.buffer = self.buffer
        command.read.offset = self.offset
        command.read.size = size
        if self.rows is not None:
            _name_rows(command.read.rows, self.rows)
        return command

    def behind(self, done: int) -> BufferPart:
        """Returns the part behind the first `done` bytes: for rows, behind whole ones."""
        if self.rows is None:
            return self._replace(offset=self.offset + done)
        passed = done // self.rows.width
        rows = self.rows._replace(offset=self.rows.offset + passed * self.rows.pitch, rows=self.rows.rows - passed)
        return self._replace(offset=self.offset + passed * rows.pitch, rows=rows)


def _name_rows(message: commands_pb2.Rows, rows: RowLayout) -> None:
    message.width, message.rows, message.pitch = rows.width, rows.rows, rows.pitch


def inline(size: int, limits: Limits) -> bool:
    """Returns whether `size` bytes travel inside a batch."""
    return size <= min(limits.max_inline_bytes, limits.max_batch_bytes - _BATCH_MARGIN)


MIDDLING = 128 << 10
"""Bytes of an ordinary array from which on the ring takes less time than a batch: a fifth of it at 1 MiB (CPU)."""
_HABIT = 4
"""Number of such copies before anything is shared for them, which takes as long as several: a single copy does
without."""


def worth_a_ring(copies: Copies, size: int) -> bool:
    """Counts a copy of `size` bytes that might travel in a batch, and returns whether it goes through the ring if that
    has room at once."""
    if size < MIDDLING:
        return False
    copies.middling_copies += 1
    return copies.middling_copies > _HABIT


def ring_is_habit(copies: Copies, size: int) -> bool:
    """Returns `worth_a_ring` for a copy that has been counted."""
    return size >= MIDDLING and copies.middling_copies > _HABIT


def stripes(size: int, most: int) -> int:
    """Returns the number of stripes for `size` bytes, up to `most`; 0: none."""
    if size < STRIPED_BYTES:
        return 0
    return min(most, size // _BYTES_A_STRIPE)


def stripe_chunk(size: int, count: int, most: int) -> int:
    """Returns the size in bytes of the chunks for `count` stripes: several for each, so that all end at about the same
    time; at least 1 MiB, at most `most`, the daemon's limit."""
    share = size // (count * _CHUNKS_A_STRIPE)
    return min(most, max(_SMALLEST_CHUNK, 1 << max(0, share.bit_length() - 1)))


def host_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, in place; writable if the array is."""
    if array.size == 0 or array.dtype.itemsize == 0:
        return memoryview(b"")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def upload_messages(
    head: bytes, data: memoryview, chunk: int, progress: Progress | None, offset: int = 0
) -> Iterator[bytes]:
    """Serialized `UploadRequest` messages of the bytes from `offset` on; `head` (session, device, transfer) is in the
    first one."""
    total = len(data)
    for start in range(offset, total, chunk):
        piece = data[start : start + chunk]
        yield chunks.upload_request(head if start == offset else b"", piece)
        if progress is not None:
            progress(min(start + chunk, total), total)


def later(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Wraps `progress` for the rest of a transfer, `done` bytes of which took another path."""
    if progress is None or not done:
        return progress
    return lambda more, _: progress(done + more, total)


def short(received: int, size: int) -> TransferError:
    """Builds the error of a read of `size` bytes that returned another number."""
    return TransferError(f"{received} of {size} bytes arrived.", reason="TRANSFER_ABORTED", fix="read the array again.")
