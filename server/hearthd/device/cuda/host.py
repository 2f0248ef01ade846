"""Page-locked host memory, kept for reuse: `cudaHostAlloc` takes milliseconds and `cudaFreeHost` waits for the device.

Sizes are rounded up to a quarter of their power of two, so that a buffer serves many sizes and at most a fifth of it
goes unused. The caller bounds what is in use (its staging limit); this bounds what is kept beside it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cuda.errors import OUT_OF_MEMORY, CudaError, translate

SMALLEST = 64 << 10


def size_class(size: int) -> int:
    """The block size that serves `size` bytes."""
    if size <= SMALLEST:
        return SMALLEST
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


class HostBuffer:
    """`size` bytes of page-locked memory; `view` is writable and must not be used after the buffer is freed."""

    __slots__ = ("address", "block", "size", "view")

    def __init__(self, address: int, size: int, block: int) -> None:
        self.address = address
        self.size = size
        self.block = block
        if size:
            self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
        else:
            self.view = memoryview(bytearray())


class HostPool:
    """Blocks by size class. Device-handle thread only."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._pinned = 0
        self._free: dict[int, list[int]] = {}

    @property
    def pinned(self) -> int:
        """Bytes page-locked, in use or kept."""
        return self._pinned

    def take(self, size: int) -> HostBuffer:
        """Raises Refusal(OUT_OF_MEMORY) where the host cannot lock that much."""
        if size <= 0:
            return HostBuffer(0, 0, 0)
        wanted = size_class(size)
        kept = min((block for block in self._free if wanted <= block <= 2 * wanted), default=0)
        if kept:
            blocks = self._free[kept]
            address = blocks.pop()
            if not blocks:
                del self._free[kept]
            return HostBuffer(address, size, kept)
        if self._cap and self._pinned + wanted > self._cap:
            self._shrink(self._cap - wanted)
        return HostBuffer(self._lock(wanted, size), size, wanted)

    def give(self, buffer: HostBuffer) -> None:
        """A second time does nothing."""
        if buffer.block:
            self._free.setdefault(buffer.block, []).append(buffer.address)
            buffer.block = 0

    def close(self) -> None:
        """Unlocks what nobody uses; what is in use goes with the process. Never raises."""
        with suppress(Exception):
            self._shrink(0)

    def _lock(self, block: int, size: int) -> int:
        for attempt in range(2):
            try:
                address: int = runtime.hostAlloc(block, runtime.hostAllocDefault)
                self._pinned += block
                return address
            except CudaError as error:
                if getattr(error, "status", 0) != OUT_OF_MEMORY:
                    raise translate(error, f"page-locking {block} bytes of host memory") from error
                if attempt == 0:
                    self._shrink(0)
        raise Refusal(
            Reason.OUT_OF_MEMORY,
            f"{size} bytes of page-locked host memory were asked for; the host refuses to lock more than the "
            f"{self._pinned} bytes that this process has.",
            fix="raise the process's memory limit (ulimit -l, the container's memory), or lower staging_bytes",
            details={"requested": size, "pinned": self._pinned, "cap": self._cap},
        )

    def _shrink(self, target: int) -> None:
        """Unlocks kept blocks, largest first, until at most `target` bytes are locked or none is kept."""
        for block in sorted(self._free, reverse=True):
            blocks = self._free[block]
            while blocks and self._pinned > target:
                try:
                    runtime.freeHost(blocks.pop())
                except CudaError as error:
                    raise translate(error, "unlocking host memory") from error
                finally:
                    self._pinned -= block
            if not blocks:
                del self._free[block]
