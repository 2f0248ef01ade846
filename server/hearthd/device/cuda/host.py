"""Page-locked host memory for copies, locked ahead of need.

`cudaHostAlloc` takes milliseconds and may wait for kernels that are running, and the device-handle thread must wait for
none. So a slab is locked when the process starts, before any kernel runs, and further ones on a helper thread: until
such a one has arrived, a copy that finds no room waits its turn.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable

from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cuda.errors import CudaError
from hearthd.device.policy.extents import Extents

SLAB = 32 << 20
GRANULARITY = 4 << 10


class HostBuffer:
    """`size` bytes of page-locked memory; `view` is writable and must not be used after the buffer is freed."""

    __slots__ = ("address", "size", "slab", "view")

    def __init__(self, address: int, size: int, slab: Slab | None) -> None:
        self.address = address
        self.size = size
        self.slab = slab
        if size:
            self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
        else:
            self.view = memoryview(bytearray())


class Slab:
    """One page-locked allocation and what of it is free."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.extents = Extents(size, GRANULARITY)


def lock_pages(size: int) -> int:
    """The address of `size` bytes of page-locked memory; usable from every thread that has the device's context."""
    return int(runtime.hostAlloc(size, runtime.hostAllocPortable))


class HostPool:
    """`take`, `give` and `grown` belong to the device-handle thread; slabs are locked on a helper thread."""

    def __init__(
        self,
        cap: int,
        *,
        slab: int = SLAB,
        lock: Callable[[int], int] = lock_pages,
        on_grown: Callable[[], None] = lambda: None,
    ) -> None:
        self._cap = cap
        self._slab = slab
        self._lock = lock
        self._on_grown = on_grown
        self._slabs: list[Slab] = []
        self._arrived: deque[Slab | Exception] = deque()
        self._growing = False
        self._failure: Exception | None = None
        self._in_use = 0
        try:
            self._slabs.append(Slab(lock(slab), slab))
        except CudaError as error:
            raise self._refusal(slab, error) from error

    @property
    def pinned(self) -> int:
        """Bytes page-locked, in use or not."""
        return sum(slab.extents.size for slab in self._slabs)

    def take(self, size: int) -> HostBuffer | None:
        """`size` bytes, or None until some are given back or have been locked; then `grown` says so.

        Raises Refusal(OUT_OF_MEMORY) where the host locks no more and nothing that is in use can come back.
        """
        if size <= 0:
            return HostBuffer(0, 0, None)
        for slab in self._slabs:
            offset = slab.extents.take(size)
            if offset is not None:
                self._in_use += 1
                return HostBuffer(slab.address + offset, size, slab)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if not self._in_use:
                raise self._refusal(size, failure) from failure
        elif not self._growing and (self.pinned + size <= self._cap or size > self._slab):
            self._grow(max(self._slab, -(-size // GRANULARITY) * GRANULARITY))
        return None

    def give(self, buffer: HostBuffer) -> None:
        """A second time does nothing."""
        slab, buffer.slab = buffer.slab, None
        if slab is not None:
            slab.extents.give(buffer.address - slab.address, buffer.size)
            self._in_use -= 1

    def grown(self) -> bool:
        """Whether memory has arrived, or been refused, since this was asked last: time to `take` again."""
        changed = bool(self._arrived)
        while self._arrived:
            arrival = self._arrived.popleft()
            self._growing = False
            if isinstance(arrival, Slab):
                self._slabs.append(arrival)
            else:
                self._failure = arrival
        return changed

    def _grow(self, size: int) -> None:
        self._growing = True

        def work() -> None:
            try:
                self._arrived.append(Slab(self._lock(size), size))
            except Exception as error:
                self._arrived.append(error)
            self._on_grown()

        threading.Thread(target=work, name="page-lock", daemon=True).start()

    def _refusal(self, size: int, error: Exception) -> Refusal:
        return Refusal(
            Reason.OUT_OF_MEMORY,
            f"{size} bytes of page-locked host memory were asked for; the host refuses to lock more than the "
            f"{self.pinned} bytes that this process has: {error}",
            fix="raise the process's memory limit (ulimit -l, the container's memory), or lower staging_bytes",
            details={"requested": size, "pinned": self.pinned, "cap": self._cap},
        )

    def close(self) -> None:
        """The memory goes with the process: unlocking it would wait for the device."""
        self._slabs.clear()
