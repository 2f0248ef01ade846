"""Mappings of exported memory in this process.

GPU memory is mapped by calls of the CUDA driver, memory of the CPU backend as a shared file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

from hearth.errors import UnsupportedError

if TYPE_CHECKING:
    from typing import TypeAlias

    from hearth.interop.cuda_driver import CudaDevice, CudaMapping
    from hearth.types import DeviceProperties

    MappableDevice: TypeAlias = "CudaDevice | HostDevice"
    """A device whose memory this process can map."""
    Mapping: TypeAlias = "CudaMapping | HostMapping"
    """Exported memory that is mapped in this process."""


def device_of(properties: DeviceProperties) -> MappableDevice:
    """Returns the device as this process sees it.

    Raises `UnsupportedError` if this process does not have the device.
    """
    if properties.backend == "cpu":
        return HostDevice()
    from hearth.interop.cuda_driver import device_of_uuid

    return device_of_uuid(properties.uuid, properties.name)


class HostDevice:
    """The CPU backend, whose memory is a memfd."""

    dlpack_device = (1, 0)
    """DLPack's device type and number of the memory."""

    def map(self, file: int, size: int) -> HostMapping:
        """Maps exported memory.

        Args:
            file: Descriptor of the memfd, which remains the caller's.
            size: Size of the memory in bytes; all of it is mapped.

        Returns:
            The mapping.

        Raises:
            UnsupportedError: The memory cannot be mapped.
        """
        try:
            if os.fstat(file).st_size < size:
                raise OSError(f"the file has {os.fstat(file).st_size} bytes, and should have {size}")
            return HostMapping(mmap.mmap(file, size))
        except (OSError, ValueError, OverflowError) as error:
            raise UnsupportedError(
                f"{size} bytes of exported memory cannot be mapped: {error}.",
                fix="check this process's limits (ulimit -v), or copy with x.get().",
            ) from error


class HostMapping:
    """Host memory that stays mapped until nothing refers to it.

    An access through a NumPy array to unmapped memory would end the process.
    """

    cuda = False
    dlpack_device = (1, 0)

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def close(self) -> None:
        """Does nothing: see the class."""
