"""Page-locked host memory by CUDA, for `hearthd.device.resources.host_pool`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cupy_backends.cuda.api import runtime

from hearthd.device.resources import host_pool
from hearthd.device.resources.host_pool import SLAB, Lock, PinnedBuffer

__all__ = ["PinnedBuffer", "CudaHostPool", "lock_pages"]


def lock_pages(size: int, device: int | None = None) -> int:
    """The address of `size` bytes of page-locked memory; usable from every thread that has the device's context.

    `device`: whose context it is locked in. A thread that has named none would have one made on device 0, which costs
    that device half a gigabyte.
    """
    if device is not None:
        runtime.setDevice(device)
    return int(runtime.hostAlloc(size, runtime.hostAllocPortable))


class CudaHostPool(host_pool.HostPool):
    """Locked with `cudaHostAlloc`, unless told otherwise, for the device that is current where the pool is made."""

    def __init__(
        self,
        cap: int,
        *,
        lock: Lock | None = None,
        slab: int = SLAB,
        on_grown: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if lock is None:
            lock = partial(lock_pages, device=runtime.getDevice())
        super().__init__(cap, lock=lock, slab=slab, on_grown=on_grown, clock=clock)
