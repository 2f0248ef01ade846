"""Which way bytes go between host and device, and how they are cut: no I/O here.

Small ones travel inside a batch, in the order of the commands; larger ones beside it, named by a transfer number: on a
stream of their own, or cut into chunks over several connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hearth_proto import chunks

if TYPE_CHECKING:
    from hearth.outgoing import Limits
    from hearth.progress import Progress

STRIPED_BYTES = 8 << 20
"""From here on bytes go over stripes where there are some: what is smaller is there before they have got going."""
MOST_STRIPES = 8
"""Of one connection to a device, and no more than the client has cores: each keeps one busy."""
_BYTES_A_STRIPE = 4 << 20
_CHUNKS_A_STRIPE = 4
_SMALLEST_CHUNK = 1 << 20

_BATCH_MARGIN = 256
"""Room for the rest of the command and the batch around inline data."""


def inline(size: int, limits: Limits) -> bool:
    """Whether `size` bytes travel inside a batch."""
    return size <= min(limits.max_inline_bytes, limits.max_batch_bytes - _BATCH_MARGIN)


def stripes(size: int, most: int) -> int:
    """Over how many stripes `size` bytes go, where there may be so many. 0: over none."""
    if size < STRIPED_BYTES:
        return 0
    return min(most, size // _BYTES_A_STRIPE)


def stripe_chunk(size: int, count: int, most: int) -> int:
    """Into chunks of how many bytes they are cut for `count` stripes: several for each, so that all have done at about
    the same time; 1 MiB at least, at most what the daemon takes."""
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
