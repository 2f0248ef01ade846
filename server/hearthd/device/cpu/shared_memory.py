"""Memory of the CPU device that other processes map: memfd segments, which disappear with their last user.

Other sessions map the segment read-only, and its seals ensure that it cannot be made writable: a kernel that writes to
it gets a SIGSEGV in its own process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.memory import Heap
from hearthd.device.resources.budget import out_of_memory

F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_FUTURE_WRITE = 0x10
SEALS = 0x1 | 0x2 | 0x4 | F_SEAL_FUTURE_WRITE
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_FUTURE_WRITE (Linux 5.1): existing writable mappings remain, and
no new ones can be created."""

_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@dataclass(eq=False, slots=True)
class CpuSharedMemory:
    """A mapped segment. `file` is -1 if another process owns it."""

    address: int
    size: int
    reserved: int
    file: int
    protected: bool
    counted: bool = False
    """True while the segment counts as memory of this process."""


class SharedMemorySegments:
    """Segments of one device, counted in its heap."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap

    def create(self, size: int, *, writable: bool = False) -> CpuSharedMemory:
        """Creates a memfd segment, sealed against resizing and, unless `writable`, against new writable mappings."""
        reserved = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        heap = self._heap
        if heap.in_use + reserved > heap.limit:
            raise out_of_memory(size, heap.info(), heap.limit)
        try:
            file = os.memfd_create("hearth-published", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise _refusal(size, error) from error
        try:
            os.ftruncate(file, reserved)
            address = _map(file, reserved, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(file, F_ADD_SEALS, SEALS & ~F_SEAL_FUTURE_WRITE if writable else SEALS)
        except OSError as error:
            os.close(file)
            raise _refusal(size, error) from error
        memory = CpuSharedMemory(address, size, reserved, file, protected=False)
        self.count_in_pool(memory)
        return memory

    def export(self, memory: CpuSharedMemory) -> int:
        """Returns a duplicate of the segment's descriptor."""
        return os.dup(memory.file)

    def map(self, file: int, size: int) -> CpuSharedMemory:
        """Maps a segment read-only. Refuses a file without all of `SEALS`, which its creator could truncate."""
        reserved = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            # Otherwise its creator could truncate it, and a read would kill this process.
            sealed = fcntl.fcntl(file, F_GET_SEALS) & SEALS == SEALS
            if not sealed or os.fstat(file).st_size < reserved:
                raise OSError(errno.EINVAL, "it is not a sealed segment of that size")
            address = _map(file, reserved, mmap.PROT_READ)
        except OSError as error:
            raise _refusal(size, error) from error
        return CpuSharedMemory(address, size, reserved, -1, protected=True)

    def count_in_pool(self, memory: CpuSharedMemory) -> None:
        """Counts the segment as memory of the heap. Further calls have no effect."""
        if not memory.counted:
            memory.counted = True
            self._heap.in_use += memory.reserved

    def release(self, memory: CpuSharedMemory) -> None:
        """Unmaps the segment, and closes its file if this process created it."""
        if memory.counted:
            memory.counted = False
            self._heap.in_use -= memory.reserved
        if memory.file >= 0:
            os.close(memory.file)
        _libc.munmap(memory.address, memory.reserved)


def _map(file: int, size: int, protection: int) -> int:
    address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, file, 0)
    if address is None or address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(address)


def _refusal(size: int, error: OSError) -> Refusal:
    number = error.errno or 0
    reason = Reason.OUT_OF_MEMORY if number in (errno.ENOMEM, errno.EMFILE, errno.ENFILE) else Reason.INTERNAL
    return Refusal(
        reason,
        f"{size} bytes could not be shared with another process: {error}",
        fix="free what is no longer needed, or raise the limits of the process",
        details={"requested": size, "errno": number},
    )
