"""Page-locked host memory for copies, locked ahead of need.

Locking takes milliseconds and may wait for kernels that are running, and the device-handle thread must wait for none.
So a slab is locked when the process starts, before any kernel runs, and further ones on a helper thread: until such a
one has arrived, a copy that finds no room waits its turn. Where the host locks no more, `refusal` says so for a while,
and copies that can do without go another way.

Small copies have separate size classes, so that they neither search the slabs nor leave them in pieces.
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
"""Smallest slab, in bytes: where a slab is refused when the process starts, a quarter of it is tried, down to this."""

GRANULARITY = 4 << 10
PAGE = 64 << 10
SMALLEST = 256
LARGEST_SMALL = 16 << 10
"""Buffers up to this size come from size classes."""

RETRY_S = 5.0
"""Seconds for which a refusal to lock more memory holds before it is tried again."""

Lock = Callable[[int], int]
"""Returns the address of new page-locked memory of this size; raises where there is none. Any thread."""


class Slab:
    """A page-locked allocation and its free extents."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.extents = Extents(size, GRANULARITY)
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class PinnedBuffer:
    """`size` bytes of page-locked memory; `view` is writable and must not be used after the buffer is freed."""

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
    """`take`, `give`, `grown` and `refusal` belong to the device-handle thread; slabs are locked on a helper thread."""

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
        """Bytes on loan, by the requested sizes."""
        self._start(slab)

    @property
    def pinned(self) -> int:
        """Bytes page-locked, in use or not."""
        return sum(slab.extents.size for slab in self._slabs)

    def info(self) -> HostInfo:
        return HostInfo(self.pinned, self.in_use)

    def take(self, size: int) -> PinnedBuffer | None:
        """Returns `size` bytes, or None until some are freed or have been locked, which `grown` reports."""
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

    def give(self, buffer: PinnedBuffer) -> None:
        """Takes a buffer back. A second call has no effect."""
        slab, buffer.slab = buffer.slab, None
        if slab is None:
            return
        self.in_use -= buffer.size
        if buffer.block is not None:
            self._small.give(buffer.block)
        else:
            slab.extents.give(buffer.address - slab.address, buffer.size)

    def grown(self) -> bool:
        """True if memory has arrived, or been refused, since the last call: time to `take` again."""
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
        """Returns the reason why the host locks no more memory for now; None where it did not refuse lately."""
        if self._failure is None or self._clock() - self._failed_at > RETRY_S:
            return None
        return Refusal(
            Reason.OUT_OF_MEMORY,
            f"{size} bytes of page-locked host memory were asked for; the host refuses to lock more than the "
            f"{self.pinned} bytes that this process has: {self._failure}",
            fix="raise the process's memory limit (ulimit -l, the container's memory), or lower staging_bytes",
            details={"requested": size, "pinned": self.pinned, "cap": self._cap},
        )

    def close(self) -> None:
        """The memory goes with the process: unlocking it would wait for the device."""
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
        """True if the pool may grow: up to the cap, or beyond it for one copy larger than a slab, alone."""
        return self.pinned + self._slab <= self._cap or size > self._slab or not self._slabs

    def _find(self, size: int) -> PinnedBuffer | None:
        if size <= LARGEST_SMALL:
            return self._find_small(size)
        for slab in self._slabs:
            offset = slab.extents.take(size)
            if offset is not None:
                return PinnedBuffer(slab, offset, size)
        return None

    def _find_small(self, size: int) -> PinnedBuffer | None:
        block = self._small.take(size)
        if block is None:
            for slab in self._slabs:
                offset = slab.extents.take(PAGE)
                if offset is not None:
                    self._small.add((slab, offset), size)
                    block = self._small.take(size)
                    break
        if block is None:
            return None
        slab, start = block.page
        return PinnedBuffer(slab, start + block.offset, size, block)

    def _reclaim(self) -> bool:
        """Gives pages of which nothing is in use back to their slabs; whether there were any."""
        pages = self._small.idle()
        for slab, offset in pages:
            slab.extents.give(offset, PAGE)
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
