"""DLPack for arrays on a device: ``np.from_dlpack(x)``, ``cupy.from_dlpack(x)``, ``torch.from_dlpack(x)``.

Who takes an array by DLPack sees its very memory, mapped into this process as `DeviceArray.ipc` does it, for as long as
they have it. So it is there where that is: on the daemon's host. ``__cuda_array_interface__`` is not there: libraries
read it without being told to, and keep nothing alive by it; `x.ipc()` has it, with an end that can be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.arrays.values import Values
from hearth.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from typing import Self

    from hearth.interop import ipc

_KDLCPU = 1
_INTERFACES = ("__cuda_array_interface__", "__array_interface__")


class Exchange(Values):
    """How a `DeviceArray` is handed to other libraries of this process."""

    __slots__ = ()

    def ipc(self) -> ipc.Exported:
        """See `DeviceArray.ipc`."""
        raise NotImplementedError

    def copy(self) -> Self:
        """See `DeviceArray.copy`."""
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device, as this process counts them. Raises `BufferError` where it does not
        have that device."""
        from hearth.interop.ipc_memory import device_of

        try:
            return device_of(self._properties()).dlpack_device
        except UnsupportedError as error:
            raise BufferError(str(error)) from error

    def __dlpack__(
        self,
        *,
        stream: Any = None,  # of the consumer: what was sent before is waited for, so it has nothing to wait for
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of the array's memory, as by `ipc`, whose word on waiting holds here, too; it ends with whatever is
        made of the capsule. ``copy=True``: of a copy on the device. ``dl_device=(1, 0)`` asks for host memory, which is
        a copy unless the device is of the CPU backend.

        Waits for the work before. Raises `BufferError` where it cannot be shared, or not without a copy.
        """
        try:
            if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
                return self._on_host(tuple(dl_device), copy, max_version)
            array: Exchange = self.copy() if copy else self
            return array.ipc()._capsule(max_version, copied=bool(copy))
        except (ArgumentError, UnsupportedError) as error:
            raise BufferError(str(error)) from error

    def _on_host(self, wanted: tuple[int, ...], copy: bool | None, max_version: tuple[int, int] | None) -> Any:
        if wanted[0] != _KDLCPU or copy is False:
            raise BufferError(
                f"the array is on DLPack's device {self.__dlpack_device__()} and cannot be seen on {wanted}"
                f"{' without a copy' if copy is False else ''}; only copies in host memory, (1, 0), are made."
            )
        from hearth.interop import dlpack

        host = self.get()
        return dlpack.capsule(
            host, host.ctypes.data, (_KDLCPU, 0), host.shape, host.strides, host.dtype,
            max_version=max_version, copied=True,
        )  # fmt: skip

    def _properties(self) -> Any:
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            why = ""
            if name in _INTERFACES:
                why = "; use x.ipc(), which has it on the daemon's host, or DLPack (from_dlpack(x))"
            elif name in _NUMPYS:
                why = f"; Hearth has no array operations: write a kernel, or use a copy, x.get().{name}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}", name=name, obj=self)


_NUMPYS = frozenset({
    "all", "any", "argmax", "argmin", "argsort", "clip", "conj", "cumprod", "cumsum", "diagonal", "dot", "imag", "max",
    "mean", "min", "nonzero", "prod", "ptp", "put", "real", "repeat", "round", "searchsorted", "sort", "std", "sum",
    "take", "trace", "var",
})  # fmt: skip
