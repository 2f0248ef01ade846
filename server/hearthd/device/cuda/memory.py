"""Device memory.

Device memory comes from a separate CUDA memory pool (`cudaMallocFromPoolAsync`): an allocation and a free are points in
a stream, neither waits for the device, and memory freed by one stream is available to every other stream as soon as
that free has been executed. If the driver has no memory pools (some vGPUs), CuPy's `MemoryPool` is used. It keeps an
arena per stream, and moves memory from one to another only through `cudaFree`, which waits for the whole device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import MemoryInfo
from hearthd.device.cuda.errors import OUT_OF_MEMORY, CudaError, status_of, translate, translated
from hearthd.device.cuda.streams import Stream
from hearthd.device.resources.budget import out_of_memory, rounded

GRAIN = 32 << 20
"""Granularity in bytes by which a memory pool of the driver grows (`cudaMemPoolAttrReservedMemCurrent`)."""

_ALLOCATION_ERRORS: tuple[type[RuntimeError | MemoryError], ...] = (*CudaError, MemoryError)
"""The exceptions of a failed allocation; CuPy's pool raises `MemoryError` at its limit."""


class CudaMemory:
    """A device allocation. `reserved` is its size after `rounded`; empty allocations have address 0."""

    __slots__ = ("address", "owner", "reserved", "size")

    def __init__(self, address: int, size: int, reserved: int, owner: Any = None) -> None:
        self.address = address
        self.size = size
        self.reserved = reserved
        self.owner = owner


class Pool(ABC):
    """Base of the two pools: checks the limit, retries when memory runs out, and reports sizes in that refusal."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_use = 0
        self._outside_pool = 0
        self._live: dict[int, CudaMemory] = {}

    @abstractmethod
    def _allocate(self, size: int, stream: Stream) -> tuple[int, Any]:
        """Returns the address and the owner of `size` bytes; `size` is a result of `rounded`.

        Raises CudaError or MemoryError.
        """

    @abstractmethod
    def _free(self, memory: CudaMemory, stream: Stream) -> None: ...

    @abstractmethod
    def reserved(self) -> int:
        """Returns the bytes of device memory that the pool holds, used or not."""

    @abstractmethod
    def release_unused(self) -> None:
        """Returns unused memory to the device. Raises CudaError."""

    def trim(self) -> None:
        """Returns unused memory to the device. Raises Refusal, DeviceFault."""
        with translated("giving unused memory back to the device"):
            self.release_unused()

    def usage(self) -> tuple[int, int]:
        """Returns the bytes of device memory that the pool holds, used or not, and the bytes in use."""
        try:
            return self.reserved() + self._outside_pool, self._in_use
        except CudaError as error:
            raise translate(error, "asking for what the pool holds") from error

    def check(self, size: int, reserved: int) -> None:
        """Raises Refusal(OUT_OF_MEMORY) if `reserved` more bytes would exceed the limit."""
        if self._limit and self._in_use + reserved > self._limit:
            raise out_of_memory(size, self.info(), self._limit)

    def count_outside(self, delta: int) -> None:
        """Adds `delta` bytes, which may be negative, to the memory held outside of the pool."""
        self._in_use += delta
        self._outside_pool += delta

    def allocate(self, size: int, stream: Stream) -> CudaMemory:
        """Allocates memory.

        Raises Refusal(OUT_OF_MEMORY) after one trim and one more attempt, Refusal(INVALID_ARGUMENT) for a negative
        size.
        """
        if size <= 0:
            if size < 0:
                raise Refusal(
                    Reason.INVALID_ARGUMENT, f"An allocation of {size} bytes was requested; the minimum is 0."
                )
            return CudaMemory(0, 0, 0)
        reserved = rounded(size)
        if self._limit:
            self.check(size, reserved)
        try:
            address, owner = self._allocate(reserved, stream)
        except _ALLOCATION_ERRORS as error:
            address, owner = self._retry(error, size, reserved, stream)
        memory = CudaMemory(address, size, reserved, owner)
        self._live[address] = memory
        self._in_use += reserved
        return memory

    def free(self, memory: CudaMemory, stream: Stream) -> None:
        """Frees memory in the stream's order. Freeing the same memory again has no effect."""
        if self._live.get(memory.address) is not memory:
            return
        del self._live[memory.address]
        self._in_use -= memory.reserved
        try:
            self._free(memory, stream)
        except CudaError as error:
            raise translate(error, f"freeing {memory.size} bytes") from error

    def info(self) -> MemoryInfo:
        """Returns the sizes of the device's memory and of the pool, memory held outside of the pool included."""
        with translated("asking for the device's free memory"):
            free, total = runtime.memGetInfo()
            reserved = self.reserved() + self._outside_pool
            return MemoryInfo(free=free, total=total, reserved=reserved, in_use=self._in_use)

    def close(self) -> None:
        """Frees all memory that is still allocated. Never raises."""
        for memory in self._live.values():
            with suppress(Exception):
                self._release(memory)
        self._live.clear()
        self._in_use = 0

    @abstractmethod
    def _release(self, memory: CudaMemory) -> None:
        """Frees memory outside any stream."""

    def _retry(self, error: RuntimeError | MemoryError, size: int, reserved: int, stream: Stream) -> tuple[int, Any]:
        """Tries the allocation again after `error`, with unused memory returned to the device first."""
        if isinstance(error, RuntimeError) and status_of(error) != OUT_OF_MEMORY:
            raise translate(error, f"allocating {size} bytes") from error
        try:
            self.release_unused()
            return self._allocate(reserved, stream)
        except CudaError as second:
            if status_of(second) != OUT_OF_MEMORY:
                raise translate(second, f"allocating {size} bytes") from second
        except MemoryError:
            pass
        raise out_of_memory(size, self.info(), self._limit) from error


class StreamOrderedPool(Pool):
    """A `cudaMemPool_t` of this process."""

    def __init__(self, device: int, limit: int = 0) -> None:
        super().__init__(limit)
        self._pool: int = runtime.memPoolCreate(
            runtime.MemPoolProps(
                runtime.cudaMemAllocationTypePinned,
                runtime.cudaMemHandleTypeNone,
                runtime.cudaMemLocationTypeDevice,
                device,
            )
        )
        self._freed_on: set[Stream] = set()
        # By default a pool returns unused memory at each synchronization; memory that is kept can be allocated without
        # a driver call.
        keep = limit or (1 << 64) - 1
        runtime.memPoolSetAttribute(self._pool, runtime.cudaMemPoolAttrReleaseThreshold, keep)

    def _allocate(self, size: int, stream: Stream) -> tuple[int, Any]:
        return runtime.mallocFromPoolAsync(size, self._pool, stream.pointer), None

    def _free(self, memory: CudaMemory, stream: Stream) -> None:
        runtime.freeAsync(memory.address, stream.pointer)
        self._freed_on.add(stream)

    def _release(self, memory: CudaMemory) -> None:
        runtime.free(memory.address)

    def reserved(self) -> int:
        return int(runtime.memPoolGetAttribute(self._pool, runtime.cudaMemPoolAttrReservedMemCurrent))

    def release_unused(self) -> None:
        """Synchronizes idle streams that have freed memory, so that the frees count, and trims the driver's pool."""
        # The driver counts a free as complete only after a synchronization, a query is not enough. Synchronizing an
        # idle stream does not wait.
        for stream in list(self._freed_on):
            with suppress(AttributeError):  # the stream was destroyed in the meantime
                if runtime.streamQuery(stream.pointer):  # 0 is success
                    continue
                runtime.streamSynchronize(stream.pointer)
            self._freed_on.discard(stream)
        runtime.memPoolTrimTo(self._pool, 0)

    def close(self) -> None:
        super().close()
        pool, self._pool = self._pool, 0
        if pool:
            with suppress(Exception):
                runtime.memPoolDestroy(pool)


class ArenaPool(Pool):
    """CuPy's pool of `cudaMalloc` memory, with an arena per stream.

    `release_unused` waits for the device (see above).
    """

    def __init__(self, limit: int = 0) -> None:
        super().__init__(limit)
        self._pool = cupy.cuda.MemoryPool()
        if limit:
            self._pool.set_limit(size=limit)

    def _allocate(self, size: int, stream: Stream) -> tuple[int, Any]:
        with cupy.cuda.ExternalStream(stream.pointer):
            pointer = self._pool.malloc(size)
        return pointer.ptr, pointer

    def _free(self, memory: CudaMemory, stream: Stream) -> None:
        memory.owner = None  # the chunk returns to the arena of the stream that it was allocated on

    def _release(self, memory: CudaMemory) -> None:
        memory.owner = None

    def reserved(self) -> int:
        return int(self._pool.total_bytes())

    def release_unused(self) -> None:
        """Frees the unused blocks of all arenas with cudaFree, which waits for the device."""
        self._pool.free_all_blocks()

    def close(self) -> None:
        super().close()
        with suppress(Exception):
            self._pool.free_all_blocks()
