"""Memory that other processes map: CUDA's virtual memory management, with handles passed as open files.

Legacy CUDA IPC (`cudaIpcGetMemHandle`) supports only `cudaMalloc` memory, which is freed with the process that exported
it. Physical memory of `cuMemCreate` lives as long as any process maps it, and each process chooses its access: other
sessions may only read, so that a kernel that writes nevertheless faults in its own process.

None of these calls is documented to wait for work on the device. They do take the driver's lock and edit page tables:
some hundreds of microseconds for each GiB, on the device-handle thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cuda.bindings import driver

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cuda.errors import CudaError, checked, is_fatal, translate
from hearthd.device.cuda.memory import Pool

_POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_SUPPORTED = (
    driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
    driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
)


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
        try:
            properties = _properties(device)
            reserved = _rounded_up(size, properties)
            self._pool.check(size, reserved)
            try:
                (handle,) = checked(driver.cuMemCreate(reserved, properties, 0))
            except CudaError as error:
                if is_fatal(int(getattr(error, "status", 0))):
                    raise
                self._pool.release_unused()  # the device may lack memory that the pool holds unused
                (handle,) = checked(driver.cuMemCreate(reserved, properties, 0))
        except CudaError as error:
            raise translate(error, f"creating {size} bytes to be shared", details={"requested": size}) from error
        try:
            address = _map(handle, reserved)
            try:
                _set_access(address, reserved, device, write=True)
            except CudaError:
                _unmap(address, reserved)
                raise
        except CudaError as error:
            with suppress(*CudaError):
                checked(driver.cuMemRelease(handle))
            raise translate(error, f"mapping {size} bytes to be shared") from error
        memory = CudaSharedMemory(address, size, reserved, handle, protected=False)
        self.count_in_pool(memory)
        return memory

    def export(self, memory: CudaSharedMemory) -> int:
        """Returns a new descriptor of the allocation, with which `map` works in another process."""
        try:
            (file,) = checked(driver.cuMemExportToShareableHandle(memory.handle, _POSIX, 0))
        except CudaError as error:
            raise translate(error, f"exporting {memory.size} bytes") from error
        return int(file)  # type: ignore[call-overload, no-any-return]

    def map(self, file: int, size: int) -> CudaSharedMemory:
        """Maps an allocation read-only, or writable with `protected` False if the driver has no read-only access."""
        device = self._device
        self._check_supported()
        try:
            reserved = _rounded_up(size, _properties(device))
            (handle,) = checked(driver.cuMemImportFromShareableHandle(file, _POSIX))
            try:
                address = _map(handle, reserved)
            finally:
                checked(driver.cuMemRelease(handle))  # the mapping keeps the allocation alive
        except CudaError as error:
            raise translate(error, f"mapping {size} bytes of another process") from error
        try:
            protected = _protect(address, reserved, device)
        except CudaError as error:
            with suppress(*CudaError):
                _unmap(address, reserved)
            raise translate(error, f"making {size} bytes of another process accessible") from error
        return CudaSharedMemory(address, size, reserved, None, protected)

    def count_in_pool(self, memory: CudaSharedMemory) -> None:
        """Counts the memory in the pool's sizes. Further calls have no effect."""
        if not memory.counted:
            memory.counted = True
            self._pool.count_outside(memory.reserved)

    def release(self, memory: CudaSharedMemory) -> None:
        """Unmaps the memory, and frees it if no process maps it any more."""
        try:
            _unmap(memory.address, memory.reserved)
            if memory.handle is not None:
                checked(driver.cuMemRelease(memory.handle))
        except CudaError as error:
            raise translate(error, f"unmapping {memory.size} bytes that were shared") from error
        finally:
            if memory.counted:
                memory.counted = False
                self._pool.count_outside(-memory.reserved)

    def _check_supported(self) -> None:
        """Raises Refusal(UNSUPPORTED) if the device lacks virtual memory management or shareable handles."""
        for attribute in _SUPPORTED:
            (device,) = checked(driver.cuDeviceGet(self._device))
            (supported,) = checked(driver.cuDeviceGetAttribute(attribute, device))
            if not supported:
                raise Refusal(
                    Reason.UNSUPPORTED,
                    f"CUDA device {self._device} cannot share memory between processes ({attribute.name} is 0)",
                    fix='use sessions of one process: isolation="shared", or no dedicated sessions',
                )


def _properties(index: int) -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = index
    properties.requestedHandleTypes = _POSIX
    return properties


def _rounded_up(size: int, properties: Any) -> int:
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    (value,) = checked(driver.cuMemGetAllocationGranularity(properties, minimum))
    granularity = int(value)  # type: ignore[call-overload]
    return int(-(-size // granularity) * granularity)


def _map(handle: Any, size: int) -> int:
    (reserved,) = checked(driver.cuMemAddressReserve(size, 0, 0, 0))
    address = int(reserved)  # type: ignore[call-overload]
    try:
        checked(driver.cuMemMap(address, size, 0, handle, 0))
    except CudaError:
        checked(driver.cuMemAddressFree(address, size))
        raise
    return int(address)


def _unmap(address: int, size: int) -> None:
    checked(driver.cuMemUnmap(address, size))
    checked(driver.cuMemAddressFree(address, size))


def _set_access(address: int, size: int, index: int, *, write: bool) -> None:
    flags = driver.CUmemAccess_flags
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = index
    access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if write else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    checked(driver.cuMemSetAccess(address, size, [access], 1))


def _protect(address: int, size: int, index: int) -> bool:
    """Makes the memory read-only and returns True.

    If the driver has no such access, makes the memory writable and returns False.
    """
    try:
        _set_access(address, size, index, write=False)
    except CudaError as error:
        if is_fatal(int(getattr(error, "status", 0))):
            raise
        _set_access(address, size, index, write=True)
        return False
    return True
