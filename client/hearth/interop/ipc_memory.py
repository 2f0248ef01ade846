"""Mappings of exported memory in this process: a GPU's by the driver's calls, the CPU backend's as a shared file."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Protocol

from hearth.errors import UnsupportedError

if TYPE_CHECKING:
    from hearth.types import DeviceProperties


class Mapping(Protocol):
    """Memory that is mapped here."""

    address: int
    cuda: bool
    dlpack_device: tuple[int, int]

    def close(self) -> None:
        """Unmaps it. A second call does nothing."""
        ...


class MappableDevice(Protocol):
    """A device whose memory this process can map."""

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's device type and number of the memory."""
        ...

    def map(self, file: int, size: int) -> Mapping:
        """All `size` bytes of what the open file stands for; the file stays the caller's. Raises `UnsupportedError`."""
        ...


def device_of(properties: DeviceProperties) -> MappableDevice:
    """The device as this process has it. Raises `UnsupportedError` where it does not have it."""
    if properties.backend == "cpu":
        return HostDevice()
    from hearth.interop.cuda_driver import device_of_uuid

    return device_of_uuid(properties.uuid, properties.name)


class HostDevice:
    """The CPU backend's memory: a memfd."""

    dlpack_device = (1, 0)

    def map(self, file: int, size: int) -> Mapping:
        try:
            if os.fstat(file).st_size < size:
                raise OSError(f"it has {os.fstat(file).st_size} bytes, and should have {size}")
            return HostMapping(mmap.mmap(file, size))
        except (OSError, ValueError, OverflowError) as error:
            raise UnsupportedError(
                f"{size} bytes of exported memory cannot be mapped: {error}.",
                reason="UNSUPPORTED",
                fix="look at this process's limits (ulimit -v), or copy with x.get().",
            ) from error


class HostMapping:
    """Mapped until nothing refers to it: what NumPy made of it would otherwise end the process when looked at."""

    cuda = False
    dlpack_device = (1, 0)

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def close(self) -> None:
        """Does nothing: see the class."""
