"""The CPU device's memory: aligned host memory with a limit, so that running out of memory behaves as on a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from hearthd.device.backend.resources import MemoryInfo
from hearthd.device.resources.budget import out_of_memory, rounded

ALIGNMENT = 256

SMALLEST_HOST = 256
"""The smallest size class of host buffers, in bytes."""

COARSE = 1 << 20
"""Size in bytes up to which size classes are powers of two."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None


@dataclass(eq=False)
class CpuMemory:
    """An allocation; the address is 0 if the size is 0."""

    address: int
    size: int
    reserved: int


class Heap:
    """Allocator that counts the bytes in use.

    `free` may be called on any stream's thread, all other methods only on the device-handle thread.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0

    def allocate(self, size: int) -> CpuMemory:
        """Allocates memory and counts its rounded size as in use. Raises Refusal(OUT_OF_MEMORY)."""
        reserved = rounded(size)
        address = 0
        if reserved:
            fits = self.in_use + reserved <= self.limit
            address = _libc.aligned_alloc(ALIGNMENT, reserved) if fits else 0
            if not address:
                raise out_of_memory(size, self.info(), self.limit)
        self.in_use += reserved
        return CpuMemory(address, size, reserved)

    def count_as_free(self, memory: CpuMemory) -> None:
        """Counts the memory as free, because its stream is about to free it, as in a stream-ordered pool."""
        self.in_use -= memory.reserved

    def free(self, memory: CpuMemory) -> None:
        """Returns the memory to the C library. Does not change `in_use`; see `count_as_free`."""
        if memory.address:
            _libc.free(memory.address)

    def trim(self) -> None:
        """Returns free pages to the system, if its C library supports that."""
        trim = getattr(_libc, "malloc_trim", None)
        if trim is not None:
            trim(0)

    def info(self) -> MemoryInfo:
        """Returns the sizes in bytes. There is no pool, so all reserved memory is in use."""
        return MemoryInfo(self.limit - self.in_use, self.limit, self.in_use, self.in_use)


class CpuHostBuffer:
    """Host memory that copies go through."""

    __slots__ = ("_bytes", "address", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = (ctypes.c_char * size)()
        self.view = memoryview(self._bytes).cast("B")
        self.address = ctypes.addressof(self._bytes)


class CpuHostPool:
    """Host buffers by size class, kept because touching fresh memory costs more than a copy."""

    def __init__(self, max_cached: int) -> None:
        self._max_cached = max_cached
        self._cached = 0
        self._free: dict[int, list[CpuHostBuffer]] = {}
        self.in_use = 0
        """Bytes lent out."""

    @property
    def reserved(self) -> int:
        """Bytes lent out, plus bytes kept for reuse."""
        return self._cached + self.in_use

    def allocate(self, size: int) -> CpuHostBuffer:
        """Returns a buffer of at least `size` bytes.

        Size classes are powers of two up to 1 MiB, then eighths of powers of two, because otherwise up to half of the
        memory would be padding.
        """
        size = max(SMALLEST_HOST, size)
        granularity = 1 << (size - 1).bit_length()
        if granularity > COARSE:
            granularity //= 8
        size = -(-size // granularity) * granularity
        self.in_use += size
        free = self._free.get(size)
        if not free:
            return CpuHostBuffer(size)
        self._cached -= size
        return free.pop()

    def free(self, buffer: CpuHostBuffer) -> None:
        """Takes back a buffer that was lent out. Must be called once for each buffer."""
        self.in_use -= buffer.size
        if self._cached + buffer.size <= self._max_cached:
            self._cached += buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)
