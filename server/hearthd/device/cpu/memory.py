"""The CPU device's memory: aligned host memory under a limit, so that out of memory means what it means on a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from hearthd.device.backend.resources import MemoryInfo
from hearthd.device.resources.budget import out_of_memory, rounded

ALIGNMENT = 256

SMALLEST_HOST = 256
"""The smallest size class of host buffers, bytes."""

COARSE = 1 << 20
"""Size classes are powers of two up to here."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None


@dataclass(eq=False)
class CpuMemory:
    """An allocation; address 0 where it has no bytes."""

    address: int
    size: int
    reserved: int


class Heap:
    """Counts what is allocated. `free` may be called on any stream's thread, everything else on the device's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0

    def allocate(self, size: int) -> CpuMemory:
        reserved = rounded(size)
        address = 0
        if reserved:
            fits = self.in_use + reserved <= self.limit
            address = _libc.aligned_alloc(ALIGNMENT, reserved) if fits else 0
            if not address:
                raise out_of_memory(size, self.info(), self.limit)
        self.in_use += reserved
        return CpuMemory(address, size, reserved)

    def promise(self, memory: CpuMemory) -> None:
        """The memory is about to be freed by its stream: it counts as free, as in a stream-ordered pool."""
        self.in_use -= memory.reserved

    def free(self, memory: CpuMemory) -> None:
        if memory.address:
            _libc.free(memory.address)

    def trim(self) -> None:
        """Gives free pages back to the system, where its allocator knows how."""
        trim = getattr(_libc, "malloc_trim", None)
        if trim is not None:
            trim(0)

    def info(self) -> MemoryInfo:
        """There is no pool behind it: what is reserved is in use."""
        return MemoryInfo(self.limit - self.in_use, self.limit, self.in_use, self.in_use)


class CpuHostBuffer:
    """Host memory that a copy goes through."""

    __slots__ = ("_bytes", "address", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = (ctypes.c_char * size)()
        self.view = memoryview(self._bytes).cast("B")
        self.address = ctypes.addressof(self._bytes)


class CpuHostPool:
    """Host buffers by size class, kept for the next copy: touching fresh memory costs more than the copy itself."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._kept = 0
        self._free: dict[int, list[CpuHostBuffer]] = {}
        self.in_use = 0
        """Bytes on loan."""

    @property
    def held(self) -> int:
        """Bytes on loan and kept."""
        return self._kept + self.in_use

    def take(self, size: int) -> CpuHostBuffer:
        """Returns at least `size` bytes. A class is a power of two, above 1 MiB an eighth of one: half of the memory
        would otherwise be padding."""
        size = max(SMALLEST_HOST, size)
        step = 1 << (size - 1).bit_length()
        if step > COARSE:
            step //= 8
        size = -(-size // step) * step
        self.in_use += size
        free = self._free.get(size)
        if not free:
            return CpuHostBuffer(size)
        self._kept -= size
        return free.pop()

    def give(self, buffer: CpuHostBuffer) -> None:
        """Takes back a buffer that is on loan, once."""
        self.in_use -= buffer.size
        if self._kept + buffer.size <= self._keep:
            self._kept += buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)
