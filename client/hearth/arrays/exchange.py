"""DLPack for arrays on a device: ``np.from_dlpack(x)``, ``cupy.from_dlpack(x)``, ``torch.from_dlpack(x)``.

A consumer uses the array's memory itself, mapped into this process as by `DeviceArray.ipc`, until it releases the
capsule; this works on the daemon's host only. Arrays have no ``__cuda_array_interface__``, because libraries read that
attribute without being asked to and do not keep the memory alive; the object that `x.ipc()` returns has the attribute,
and an explicit end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.errors import ArgumentError, UnsupportedError
from hearth.interop import dlpack
from hearth.interop.ipc_memory import device_of

if TYPE_CHECKING:
    from typing import Protocol

    import numpy as np

    from hearth.interfaces import ArrayLike
    from hearth.interop.ipc import Exported

    class Shareable(ArrayLike, Protocol):
        """An array that can be shared within this process: `hearth.blocking.array.DeviceArray`."""

        def get(self) -> np.ndarray[Any, Any]:
            """Returns a copy in host memory. Blocks until the contents have arrived."""
            ...

        def ipc(self) -> Exported:
            """Maps the memory into this process, until the returned object is closed. Blocks; see `DeviceArray.ipc`."""
            ...

        def __dlpack_device__(self) -> tuple[int, int]: ...


_KDLCPU = 1


def device_number(array: Shareable) -> tuple[int, int]:
    """Returns the device's number for DLPack; see `DeviceArray.__dlpack_device__`."""
    try:
        return device_of(array._device.properties).dlpack_device
    except UnsupportedError as error:
        raise BufferError(str(error)) from error


def capsule(
    array: Shareable, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None
) -> Any:
    """Makes a DLPack capsule; see `DeviceArray.__dlpack__`.

    Args:
        array: The array.
        max_version: Newest version of DLPack that the consumer supports; None: a version before 1.0.
        dl_device: Device type and number that the consumer asks for; None: the array's own.
        copy: True for a copy, False for an error if a copy is necessary, None for either.

    Returns:
        The capsule.

    Raises:
        BufferError: The memory cannot be shared, or not without a copy.
    """
    try:
        if dl_device is not None and tuple(dl_device) != array.__dlpack_device__():
            return _on_host(array, tuple(dl_device), copy, max_version)
        shared = array.copy() if copy else array
        return shared.ipc()._capsule(max_version, copied=bool(copy))
    except (ArgumentError, UnsupportedError) as error:
        raise BufferError(str(error)) from error


def _on_host(
    array: Shareable, requested: tuple[int, ...], copy: bool | None, max_version: tuple[int, int] | None
) -> Any:
    if requested[0] != _KDLCPU or copy is False:
        raise BufferError(
            f"the array is on DLPack device {array.__dlpack_device__()} and cannot be exported to "
            f"{requested}{' without a copy' if copy is False else ''}; only copies to host memory, (1, 0), "
            "are supported."
        )
    host = array.get()
    return dlpack.capsule(
        host, host.ctypes.data, (_KDLCPU, 0), host.shape, host.strides, host.dtype,
        max_version=max_version, copied=True,
    )  # fmt: skip
