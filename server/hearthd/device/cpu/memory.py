"""The CPU device's memory: aligned host memory under a limit, so that out of memory means what it means on a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal

GRANULARITY = 512
"""What an allocation is rounded up to: CuPy's pool does the same."""

ALIGNMENT = 256

SMALLEST_HOST = 4 << 10
"""The smallest size class of host buffers, bytes."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None


@dataclass(eq=False)
class CpuMemory:
    """One allocation; address 0 where it has no bytes."""

    address: int
    size: int
    reserved: int


class Heap:
    """Counts what is allocated. `free` may be called on any stream's thread, everything else on the device's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0

    def allocate(self, size: int) -> CpuMemory:
        reserved = -(-size // GRANULARITY) * GRANULARITY
        if self.in_use + reserved > self.limit:
            raise self._out_of_memory(size)
        address = _libc.aligned_alloc(ALIGNMENT, reserved) if reserved else 0
        if reserved and not address:
            raise self._out_of_memory(size)
        self.in_use += reserved
        return CpuMemory(address or 0, size, reserved)

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

    def _out_of_memory(self, size: int) -> Refusal:
        free = self.limit - self.in_use
        return Refusal(
            Reason.OUT_OF_MEMORY,
            f"{size} bytes are asked for; {free} of {self.limit} are free",
            fix="free buffers that are not needed any more, or allocate less",
            details={"requested": size, "free": free, "total": self.limit, "reserved": self.in_use},
        )


class CpuHostBuffer:
    """Host memory that a copy goes through."""

    __slots__ = ("_bytes", "address", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = (ctypes.c_char * size)()
        self.view = memoryview(self._bytes).cast("B")
        self.address = ctypes.addressof(self._bytes)


class HostPool:
    """Host buffers by size class, kept for the next copy: touching fresh memory costs more than the copy itself."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._kept = 0
        self._free: dict[int, list[CpuHostBuffer]] = {}

    def take(self, size: int) -> CpuHostBuffer:
        size = max(SMALLEST_HOST, 1 << (size - 1).bit_length())
        free = self._free.get(size)
        if not free:
            return CpuHostBuffer(size)
        self._kept -= size
        return free.pop()

    def give(self, buffer: CpuHostBuffer) -> None:
        if self._kept + buffer.size <= self._keep:
            self._kept += buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)


def fill_with(address: int, pattern: bytes, size: int) -> None:
    """`pattern` repeated over `size` bytes: doubled in place, so that memmove does the work."""
    if len(set(pattern)) == 1:
        ctypes.memset(address, pattern[0], size)
        return
    done = len(pattern)
    ctypes.memmove(address, pattern, done)
    while done < size:
        step = min(done, size - done)
        ctypes.memmove(address + done, address, step)
        done += step
