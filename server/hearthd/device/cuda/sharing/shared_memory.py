"""Memory that other processes map: CUDA's virtual memory management, with handles passed as open files.

Legacy CUDA IPC (`cudaIpcGetMemHandle`) supports only `cudaMalloc` memory, which is freed with the process that exported
it. Physical memory of `cuMemCreate` lives as long as any process maps it, and each process chooses its access: other
sessions may only read, so that a kernel that writes nevertheless faults in its own process.

The calls run on the device-handle thread; `hearthd.device.cuda.sharing.virtual_memory` documents how long they take.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cuda.errors import CudaError, is_fatal, translated
from hearthd.device.cuda.memory import Pool
from hearthd.device.cuda.sharing import virtual_memory


class CudaSharedMemory:
    """A mapped allocation. `handle` is None if another process created it: the mapping alone keeps it alive."""

    __slots__ = ("address", "counted", "handle", "protected", "reserved", "size")

    def __init__(self, address: int, size: int, reserved: int, handle: Any, protected: bool) -> None:
        self.address = address
        self.size = size
        self.reserved = reserved
        self.handle = handle
        self.protected = protected
        self.counted = False
        """True while the allocation counts as memory of this process."""


class SharedAllocations:
    """Allocations of one device that other processes can map, counted in the device's pool."""

    def __init__(self, device: int, pool: Pool) -> None:
        self._device = device
        self._pool = pool

    def create(self, size: int, *, writable: bool = False) -> CudaSharedMemory:
        """Creates an allocation.

        `writable` has no effect, because each process that maps the memory chooses its own access.
        """
        device = self._device
        self._check_supported()
        with translated(f"creating {size} bytes to be shared", details={"requested": size}):
            properties = virtual_memory.properties_of(device)
            reserved = virtual_memory.rounded_up(size, properties)
            self._pool.check(size, reserved)
            try:
                handle = virtual_memory.create(reserved, properties)
            except CudaError as error:
                if is_fatal(error):
                    raise
                self._pool.release_unused()  # the device may lack memory that the pool holds unused
                handle = virtual_memory.create(reserved, properties)
        with translated(f"mapping {size} bytes to be shared"):
            address = virtual_memory.map_new(handle, reserved, device)
        memory = CudaSharedMemory(address, size, reserved, handle, protected=False)
        self.count_in_pool(memory)
        return memory

    def export(self, memory: CudaSharedMemory) -> int:
        """Returns a new descriptor of the allocation, with which `map` works in another process."""
        with translated(f"exporting {memory.size} bytes"):
            return virtual_memory.export(memory.handle)

    def map(self, file: int, size: int) -> CudaSharedMemory:
        """Maps an allocation read-only, or writable with `protected` False if the driver has no read-only access."""
        device = self._device
        self._check_supported()
        with translated(f"mapping {size} bytes of another process"):
            reserved = virtual_memory.rounded_up(size, virtual_memory.properties_of(device))
            address = virtual_memory.map_file(file, reserved)
        with translated(f"making {size} bytes of another process accessible"):
            try:
                protected = virtual_memory.protect(address, reserved, device)
            except CudaError:
                with suppress(*CudaError):
                    virtual_memory.unmap(address, reserved)
                raise
        return CudaSharedMemory(address, size, reserved, None, protected)

    def count_in_pool(self, memory: CudaSharedMemory) -> None:
        """Counts the memory in the pool's sizes. Further calls have no effect."""
        if not memory.counted:
            memory.counted = True
            self._pool.count_outside(memory.reserved)

    def release(self, memory: CudaSharedMemory) -> None:
        """Unmaps the memory, and frees it if no process maps it any more."""
        try:
            with translated(f"unmapping {memory.size} bytes that were shared"):
                virtual_memory.unmap(memory.address, memory.reserved)
                if memory.handle is not None:
                    virtual_memory.release(memory.handle)
        finally:
            if memory.counted:
                memory.counted = False
                self._pool.count_outside(-memory.reserved)

    def _check_supported(self) -> None:
        """Raises Refusal(UNSUPPORTED) if the device lacks virtual memory management or shareable handles."""
        missing = virtual_memory.missing_attribute(self._device)
        if missing:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"CUDA device {self._device} cannot share memory between processes ({missing} is 0)",
                fix='use sessions of one process: isolation="shared", or no dedicated sessions',
            )
