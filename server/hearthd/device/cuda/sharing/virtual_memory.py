"""CUDA's virtual memory management: physical allocations, and the address ranges at which processes map them.

An allocation lives as long as any process maps it. None of these calls is documented to wait for work on the device.
They do take the driver's lock and edit page tables: some hundreds of microseconds for each GiB. Every function raises
CudaError.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cuda.bindings import driver

from hearthd.device.cuda.errors import CudaError, checked, is_fatal

POSIX_FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
SHARING = (
    driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
    driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
)
"""Attributes of a device that can share memory between processes."""


def missing_attribute(index: int) -> str:
    """Returns the name of the attribute that device `index` lacks to share memory; empty if it lacks none."""
    for attribute in SHARING:
        (device,) = checked(driver.cuDeviceGet(index))
        (supported,) = checked(driver.cuDeviceGetAttribute(attribute, device))
        if not supported:
            return str(attribute.name)
    return ""


def properties_of(index: int) -> Any:
    """Returns the properties of allocations on device `index` that other processes can map."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = index
    properties.requestedHandleTypes = POSIX_FILE
    return properties


def rounded_up(size: int, properties: Any) -> int:
    """Returns `size` rounded up to a multiple of the smallest allocation."""
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    (value,) = checked(driver.cuMemGetAllocationGranularity(properties, minimum))
    granularity = int(value)
    return -(-size // granularity) * granularity


def create(size: int, properties: Any) -> Any:
    """Returns the handle of a new allocation."""
    (handle,) = checked(driver.cuMemCreate(size, properties, 0))
    return handle


def release(handle: Any) -> None:
    """Ends a handle; mappings keep the allocation alive."""
    checked(driver.cuMemRelease(handle))


def export(handle: Any) -> int:
    """Returns a new descriptor of the allocation, for `import_file` in another process."""
    (file,) = checked(driver.cuMemExportToShareableHandle(handle, POSIX_FILE, 0))
    return int(file)


def map_file(file: int, size: int) -> int:
    """Returns the address at which the allocation of another process is mapped, without access yet."""
    (handle,) = checked(driver.cuMemImportFromShareableHandle(file, POSIX_FILE))
    try:
        return map_handle(handle, size)
    finally:
        release(handle)  # the mapping keeps the allocation alive


def map_handle(handle: Any, size: int) -> int:
    """Returns the address at which the allocation is mapped, without access yet."""
    (reserved,) = checked(driver.cuMemAddressReserve(size, 0, 0, 0))
    address = int(reserved)
    try:
        checked(driver.cuMemMap(address, size, 0, handle, 0))
    except CudaError:
        checked(driver.cuMemAddressFree(address, size))
        raise
    return address


def map_new(handle: Any, size: int, index: int) -> int:
    """Returns the address at which a new allocation is mapped, writable for device `index`.

    Ends the handle if that fails.
    """
    try:
        address = map_handle(handle, size)
        try:
            set_access(address, size, index, write=True)
        except BaseException:
            with suppress(*CudaError):
                unmap(address, size)
            raise
    except BaseException:
        with suppress(*CudaError):
            release(handle)
        raise
    return address


def unmap(address: int, size: int) -> None:
    """Unmaps the memory at `address`, and frees the address range."""
    checked(driver.cuMemUnmap(address, size))
    checked(driver.cuMemAddressFree(address, size))


def set_access(address: int, size: int, index: int, *, write: bool) -> None:
    """Gives device `index` access to mapped memory, which may be memory of another device."""
    flags = driver.CUmemAccess_flags
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = index
    access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if write else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    checked(driver.cuMemSetAccess(address, size, [access], 1))


def protect(address: int, size: int, index: int) -> bool:
    """Makes the memory read-only for device `index` and returns True.

    If the driver has no such access, makes the memory writable and returns False.
    """
    try:
        set_access(address, size, index, write=False)
    except CudaError as error:
        if is_fatal(error):
            raise
        set_access(address, size, index, write=True)
        return False
    return True
