"""Page locks: host memory that a CUDA device can access directly for copies.

Covers the locking, not the buffers: `hearthd.device.resources.host_pool` divides the locked memory among copies.
Locking takes milliseconds, and may wait for running kernels.
"""

from __future__ import annotations

from cupy_backends.cuda.api import runtime

_PORTABLE = 1
"""cudaHostRegisterPortable."""


class PageLocks:
    """Page-locks host memory in the context of one device. Any thread.

    Each method first makes the device current: on a thread without a current device, CUDA would create a context on
    device 0, which takes half a gigabyte of that device.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def allocate(self, size: int) -> int:
        """Returns the address of `size` new bytes, usable from every thread that has the device's context.

        Raises CudaError.
        """
        runtime.setDevice(self._device)
        return int(runtime.hostAlloc(size, runtime.hostAllocPortable))

    def register(self, address: int, size: int) -> None:
        """Page-locks memory that is mapped in this process. Raises CudaError."""
        runtime.setDevice(self._device)
        runtime.hostRegister(address, size, _PORTABLE)

    def unregister(self, address: int, size: int) -> None:
        """Unlocks exactly the range that one `register` locked. Raises CudaError."""
        runtime.setDevice(self._device)
        runtime.hostUnregister(address)
