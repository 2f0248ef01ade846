"""Page-locked host memory for copies, locked in advance.

Locking takes milliseconds and may wait for running kernels, and the device-handle thread must not wait for kernels.
Therefore one slab is locked when the process starts, before any kernel runs, and further slabs on a helper thread;
until such a slab is ready, a copy without room must wait. If the host refuses to lock more, `refusal` reports that
for a while, and copies that can do without page-locked memory use another way.

Small copies have separate size classes, so that they neither search the slabs nor fragment them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import HostInfo
from hearthd.device.resources.extents import Extents
from hearthd.device.resources.size_classes import Block, SizeClasses

SLAB = 32 << 20
SMALLEST_SLAB = 1 << 20
"""Smallest slab, in bytes. If the first slab is refused when the process starts, a quarter of its size is tried, down
to this size."""

GRANULARITY = 4 << 10
PAGE = 64 << 10
SMALLEST = 256
LARGEST_SMALL = 16 << 10
"""Largest buffer, in bytes, that is taken from a size class."""

RETRY_S = 5.0
"""Seconds after a refusal to lock memory until locking is tried again."""

Lock = Callable[[int], int]
"""Returns the address of new page-locked memory of this size; raises if the system refuses. May be called on any
thread."""


class Slab:
    """A page-locked allocation and its free extents."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.extents = Extents(size, GRANULARITY)
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class PinnedBuffer:
    """`size` bytes of page-locked memory. `view` is writable, and must not be used after the buffer is freed."""

    __slots__ = ("address", "block", "size", "slab", "view")

    def __init__(self, slab: Slab | None, offset: int, size: int, block: Block[tuple[Slab, int]] | None = None) -> None:
        self.slab = slab
        self.block = block
        self.size = size
        if slab is None:
            self.address = 0
            self.view = memoryview(bytearray())
        else:
            self.address = slab.address + offset
            self.view = slab.view[offset : offset + size]


class HostPool:
    """Pool of page-locked memory.

    `allocate`, `free`, `grown` and `refusal` must be called on the device-handle thread; slabs are locked on a helper
    thread.
    """

    def __init__(
        self,
        cap: int,
        *,
        lock: Lock,
        slab: int = SLAB,
        on_grown: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cap = cap
        self._slab = slab
        self._lock = lock
        self._on_grown = on_grown
        self._clock = clock
        self._slabs: list[Slab] = []
        self._small: SizeClasses[tuple[Slab, int]] = SizeClasses(PAGE, SMALLEST, LARGEST_SMALL)
        self._arrived: deque[Slab | Exception] = deque()
        self._growing = False
        self._failure: Exception | None = None
        self._failed_at = 0.0
        self.in_use = 0
        """Bytes in use, by requested sizes."""
        self._start(slab)

    @property
    def pinned(self) -> int:
        """Number of page-locked bytes, in use or not."""
        return sum(slab.extents.size for slab in self._slabs)

    def info(self) -> HostInfo:
        """Returns the page-locked bytes and those in use."""
        return HostInfo(self.pinned, self.in_use)

    def allocate(self, size: int) -> PinnedBuffer | None:
        """Returns a buffer of `size` bytes.

        Returns None if there is no room until a buffer is freed or more memory is locked; the latter is reported by
        `grown`.
        """
        if size <= 0:
            return PinnedBuffer(None, 0, 0)
        buffer = self._find(size)
        if buffer is None and self._reclaim():
            buffer = self._find(size)
        if buffer is not None:
            self.in_use += size
        elif not self._growing and self.refusal(size) is None and self._may_grow(size):
            self._grow(max(self._slab, -(-size // GRANULARITY) * GRANULARITY))
        return buffer

    def free(self, buffer: PinnedBuffer) -> None:
        """Frees a buffer. A second call has no effect."""
        slab, buffer.slab = buffer.slab, None
        if slab is None:
            return
        self.in_use -= buffer.size
        if buffer.block is not None:
            self._small.free(buffer.block)
        else:
            slab.extents.release(buffer.address - slab.address, buffer.size)

    def grown(self) -> bool:
        """Returns True if memory was locked or refused since the last call: callers should `allocate` again."""
        changed = bool(self._arrived)
        while self._arrived:
            arrival = self._arrived.popleft()
            self._growing = False
            if isinstance(arrival, Slab):
                self._slabs.append(arrival)
                self._failure = None
            else:
                self._fail(arrival)
        return changed

    def refusal(self, size: int) -> Refusal | None:
        """Returns the reason why the host currently locks no more memory; None if it has not refused recently."""
        if self._failure is None or self._clock() - self._failed_at > RETRY_S:
            return None
        return Refusal(
            Reason.OUT_OF_MEMORY,
            f"{size} bytes of page-locked host memory were requested; the host refuses to lock more than the "
            f"{self.pinned} bytes that this process has: {self._failure}",
            fix="raise the process's memory limit (ulimit -l, the container's memory), or lower staging_bytes",
            details={"requested": size, "pinned": self.pinned, "cap": self._cap},
        )

    def close(self) -> None:
        """Drops the slabs without unlocking them, because unlocking would wait for the device.

        The memory is released when the process ends.
        """
        self._slabs.clear()

    def _start(self, size: int) -> None:
        while True:
            try:
                self._slabs.append(Slab(self._lock(size), size))
                return
            except Exception as error:
                if size // 4 < SMALLEST_SLAB:
                    self._fail(error)
                    return
                size //= 4

    def _may_grow(self, size: int) -> bool:
        """True if the pool may grow: up to the cap, or beyond the cap for a single copy larger than a slab."""
        return self.pinned + self._slab <= self._cap or size > self._slab or not self._slabs

    def _find(self, size: int) -> PinnedBuffer | None:
        if size <= LARGEST_SMALL:
            return self._find_small(size)
        for slab in self._slabs:
            offset = slab.extents.allocate(size)
            if offset is not None:
                return PinnedBuffer(slab, offset, size)
        return None

    def _find_small(self, size: int) -> PinnedBuffer | None:
        block = self._small.allocate(size)
        if block is None:
            for slab in self._slabs:
                offset = slab.extents.allocate(PAGE)
                if offset is not None:
                    self._small.add((slab, offset), size)
                    block = self._small.allocate(size)
                    break
        if block is None:
            return None
        slab, start = block.page
        return PinnedBuffer(slab, start + block.offset, size, block)

    def _reclaim(self) -> bool:
        """Returns unused pages of the size classes to their slabs. Returns True if there were any."""
        pages = self._small.idle()
        for slab, offset in pages:
            slab.extents.release(offset, PAGE)
        return bool(pages)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            print(f"the host locks no more memory for copies: {error}", file=sys.stderr, flush=True)
        self._failure = error
        self._failed_at = self._clock()

    def _grow(self, size: int) -> None:
        self._growing = True

        def work() -> None:
            try:
                self._arrived.append(Slab(self._lock(size), size))
            except Exception as error:
                self._arrived.append(error)
            self._on_grown()

        threading.Thread(target=work, name="page-lock", daemon=True).start()
