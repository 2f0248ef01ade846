"""Page-locked host memory by CUDA, for `hearthd.device.host_pool`."""

from __future__ import annotations

import time
from collections.abc import Callable

from cupy_backends.cuda.api import runtime

from hearthd.device import host_pool
from hearthd.device.host_pool import SLAB, HostBuffer, Lock

__all__ = ["HostBuffer", "HostPool", "lock_pages"]


def lock_pages(size: int) -> int:
    """The address of `size` bytes of page-locked memory; usable from every thread that has the device's context."""
    return int(runtime.hostAlloc(size, runtime.hostAllocPortable))


class HostPool(host_pool.HostPool):
    """Locked with `cudaHostAlloc`, unless told otherwise."""

    def __init__(
        self,
        cap: int,
        *,
        lock: Lock = lock_pages,
        slab: int = SLAB,
        on_grown: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cap, lock=lock, slab=slab, on_grown=on_grown, clock=clock)
