"""Signals: 8-byte values that a CUDA stream writes to page-locked host memory."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from hearthd.device.cuda.errors import CudaError, checked, translate
from hearthd.device.cuda.streams import Stream

_SUPPORTED = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS


class HostSignals:
    """Writes signals behind the work of a stream."""

    def __init__(self) -> None:
        self._supported: bool | None = None
        """True if streams of the device can write 64-bit values; None before the first query."""

    def address(self, address: int) -> int:
        """Returns the device address of page-locked host memory; 0 where the device cannot write signals."""
        try:
            if self._supported is None:
                (device,) = checked(driver.cuCtxGetDevice())
                (supported,) = checked(driver.cuDeviceGetAttribute(_SUPPORTED, device))
                self._supported = bool(supported)
            if not self._supported:
                return 0
            pointer: Any = checked(driver.cuMemHostGetDevicePointer(address, 0))[0]
        except CudaError as error:
            raise translate(error, "looking for the address of signals") from error
        return int(pointer)

    def write(self, address: int, value: int, stream: Stream) -> None:
        """Enqueues the write of 8 bytes at `address`, which `address()` returned."""
        try:
            checked(driver.cuStreamWriteValue64(stream.pointer, address, value, 0))  # 0: behind a memory barrier
        except CudaError as error:
            raise translate(error, "writing a signal") from error
