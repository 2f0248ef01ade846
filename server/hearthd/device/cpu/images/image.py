"""The image of a module: a shared object, followed by the static shared memory of each of its kernels.

A loader ignores data after a shared object.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_MARK = b"HEARTH-1"
_END = struct.Struct("<I8s")


def pack(library: bytes, shared_bytes: Sequence[int]) -> bytes:
    """Returns the image of a shared object.

    `shared_bytes` has the bytes of static shared memory of each of its kernels, in their order.
    """
    return library + struct.pack(f"<{len(shared_bytes)}I", *shared_bytes) + _END.pack(len(shared_bytes), _MARK)


def shared_bytes(image: bytes) -> tuple[int, ...] | None:
    """Returns the bytes of static shared memory of each kernel of an image; None if `image` is not a valid image."""
    if len(image) < _END.size:
        return None
    count, mark = _END.unpack_from(image, len(image) - _END.size)
    start = len(image) - _END.size - 4 * count
    return struct.unpack_from(f"<{count}I", image, start) if mark == _MARK and start > 0 else None
