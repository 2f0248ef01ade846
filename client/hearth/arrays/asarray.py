"""Arrays of other libraries, as ``gpu.asarray`` takes them: host memory by whatever protocol it speaks, and GPU memory
of this process (CuPy, PyTorch, JAX, Numba), which is copied on the GPU where the daemon has the same host's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from hearth import shapes
from hearth.errors import DtypeError, HearthError, UnsupportedError
from hearth.interop import dlpack
from hearth_proto import layouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike, DeviceContext
    from hearth.interop.cuda_driver import CudaDevice

A = TypeVar("A", bound="ArrayLike")

_FAILURES = (TypeError, ValueError, RuntimeError, BufferError)
"""Exceptions that libraries raise for an object that makes no array."""
_TO_HOST = "pass it from host memory: a.get() of CuPy, a.cpu() of PyTorch, np.asarray(a) of JAX."


class OnGpu(NamedTuple):
    """Memory of a GPU in this process, contiguous."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int | None
    """Handle of the producer's stream, to be synchronized before the memory is read; None: all streams."""


def with_host_array(obj: Any, dtype: np.dtype[Any] | None, use: Callable[[np.ndarray[Any, Any]], None]) -> None:
    """Calls `use` with the object as a host array in C order, which may be its own memory, and not for longer. Raises
    `DtypeError` where it makes no array."""
    kind, why = _dlpack_device(obj)[0], ""
    try:
        if kind in (dlpack.CPU, dlpack.CUDA_HOST) and not hasattr(obj, "__array__"):
            _by_dlpack(obj, dtype, use)
            return
        host = np.asarray(obj, dtype, order="C")
    except _FAILURES as error:
        if isinstance(error, HearthError):
            raise
        host, why = None, f"{error}"
    if host is not None:
        use(host)
        return
    if kind in (dlpack.CPU, dlpack.CUDA_HOST):  # PyTorch's bfloat16, for one, which its __array__ does not do
        try:
            _by_dlpack(obj, dtype, use)
            return
        except _FAILURES as error:
            if isinstance(error, HearthError):
                raise
            why = f"{why}; {error}"
    raise DtypeError(f"this {_name(obj)} makes no array ({why}).", reason="INVALID_ARGUMENT", fix="see np.asarray.")


def _by_dlpack(obj: Any, dtype: np.dtype[Any] | None, use: Callable[[np.ndarray[Any, Any]], None]) -> None:
    with dlpack.Taken(obj.__dlpack__()) as taken:
        host = taken.host()
        use(np.asarray(host, dtype, order="C"))
        del host


def on_gpu(obj: Any) -> OnGpu | None:
    """Describes an object's GPU memory; None if it has none.

    Raises:
        UnsupportedError: The memory is not contiguous, or the object speaks DLPack for a device that is neither host
            nor CUDA.
    """
    try:
        said = getattr(obj, "__cuda_array_interface__", None)
    except _FAILURES as error:  # PyTorch's, of a tensor with gradients
        raise UnsupportedError(
            f"this {_name(obj)} does not give its memory away: {error}.",
            reason="UNSUPPORTED",
            fix="detach it first: t.detach().",
        ) from None
    if isinstance(said, dict):
        dtype = np.dtype(said["typestr"])
        shape = tuple(int(axis) for axis in said["shape"])
        strides = said.get("strides") or shapes.strides_of(shape, dtype.itemsize)
        return OnGpu(_dense(obj, said["data"][0], shape, strides, dtype), shape, dtype, said.get("stream"))
    kind = _dlpack_device(obj)[0]
    if kind == dlpack.CUDA:
        with dlpack.Taken(obj.__dlpack__()) as taken:
            address = _dense(obj, taken.address, taken.shape, taken.strides, taken.dtype)
            return OnGpu(address, taken.shape, taken.dtype, None)  # the object keeps its memory
    if kind not in (0, dlpack.CPU, dlpack.CUDA_HOST) and not hasattr(obj, "__array__"):
        raise UnsupportedError(
            f"this {_name(obj)} lies on a device of DLPack's type {kind}, which cannot be read here.",
            reason="UNSUPPORTED",
            fix="pass it from host memory.",
        )
    return None


def copied(obj: Any, found: OnGpu, device: DeviceContext[A], stream: BaseStream | None) -> A:
    """A new array on the device with the contents of this process's GPU memory; done when it returns, for both sides.

    Raises `UnsupportedError` where this process cannot map memory of the device.
    """
    from hearth.arrays.allocation import allocate
    from hearth.interop import ipc

    here = local_gpu(obj, device)
    fresh = allocate(device, found.shape, shapes.dtype_of(found.dtype), stream)
    if fresh.nbytes:
        try:
            view = ipc.export(fresh)
        except UnsupportedError as error:
            raise _unreachable(obj, device, error) from error
        with view:
            here.copy(view.address, found.address, fresh.nbytes, found.stream)
    return fresh


def local_gpu(obj: Any, device: DeviceContext[Any]) -> CudaDevice:
    """The device as this process has it. Raises `UnsupportedError`, about `obj`, where it does not have the device."""
    from hearth.interop.cuda_driver import CudaDevice
    from hearth.interop.ipc_memory import device_of

    try:
        here = device_of(device.properties)
        if not isinstance(here, CudaDevice):
            raise UnsupportedError(f"device {device.ordinal} is no GPU.", reason="UNSUPPORTED")
    except UnsupportedError as error:
        raise _unreachable(obj, device, error) from error
    return here


def _unreachable(obj: Any, device: DeviceContext[Any], error: UnsupportedError) -> UnsupportedError:
    return UnsupportedError(
        f"this {_name(obj)} lies in GPU memory of this process, from where device {device.ordinal} cannot take it: "
        f"{error.message}",
        reason="UNSUPPORTED",
        fix=_TO_HOST,
        details=error.details,
    )


def _dense(obj: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    rows = layouts.rows_of(shape, tuple(strides), dtype.itemsize)
    if rows is None or not rows.dense:
        raise UnsupportedError(
            f"this {_name(obj)} of shape {shape} is not contiguous (strides {tuple(strides)}).",
            reason="UNSUPPORTED",
            fix="make it so first: cupy.ascontiguousarray(a), or t.contiguous() of PyTorch.",
        )
    return address


def _dlpack_device(obj: Any) -> tuple[int, int]:
    """Returns DLPack's device type and number of `obj`; type 0: it does not speak DLPack."""
    ask = getattr(type(obj), "__dlpack_device__", None)
    if ask is None or not hasattr(type(obj), "__dlpack__"):
        return 0, 0
    try:
        kind, number = ask(obj)
        return int(kind), int(number)
    except _FAILURES:
        return 0, 0


def _name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
