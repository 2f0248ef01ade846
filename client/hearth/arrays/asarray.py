"""Conversion of other libraries' arrays for ``gpu.asarray``.

Accepts host memory, accessed by any protocol, and GPU memory of this process (CuPy, PyTorch, JAX, Numba), which is
copied on the GPU if the daemon serves the same GPU of this host.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from hearth import shapes
from hearth.arrays.base_array import BaseArray
from hearth.arrays.host_copy import CONVERSION_FAILURES
from hearth.errors import ArgumentError, DtypeError, HearthError, UnsupportedError
from hearth.interop import dlpack
from hearth_proto import layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike, DeviceContext
    from hearth.interop.cuda_driver import CudaDevice

A = TypeVar("A", bound="ArrayLike")

_LEGACY_DEFAULT = 1
_TO_HOST = "pass it from host memory: a.get() for CuPy, a.cpu() for PyTorch, np.asarray(a) for JAX."


class GpuMemory(NamedTuple):
    """Contiguous memory of a GPU in this process."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    streams: tuple[int, ...] | None
    """Handles of the streams to be synchronized before the memory is read; None: all streams."""


def memory_behind(obj: Any, stream: Any) -> GpuMemory:
    """Describes GPU memory of this process, to be read after the work of a CUDA stream of this process.

    Args:
        obj: The object.
        stream: An object with ``__cuda_stream__``.

    Returns:
        The memory.

    Raises:
        ArgumentError: `stream` is no stream, or `obj` is not in GPU memory of this process.
    """
    from hearth.interop.foreign_stream import handle_of

    handle = handle_of(stream)
    memory = None if isinstance(obj, BaseArray) else gpu_memory_of(obj, handle)
    if memory is None:
        raise ArgumentError(
            f"the stream is a CUDA stream of this process, and this {type(obj).__name__} is not in GPU memory of "
            "this process.",
            fix="pass a stream of the device, gpu.stream(), or leave out stream=.",
        )
    return memory


@contextmanager
def host_array(obj: Any, dtype: np.dtype[Any] | None) -> Iterator[np.ndarray[Any, Any]]:
    """Context of an object's contents as a host array in C order, which may be the object's own memory.

    Args:
        obj: The object.
        dtype: Type of the elements; None: that of `obj`.

    Raises:
        DtypeError: `obj` cannot be converted to an array.
    """
    on_host = _dlpack_device(obj)[0] in (dlpack.CPU, dlpack.CUDA_HOST)
    causes: list[str] = []
    with ExitStack() as tensor:
        host = None
        if hasattr(obj, "__array__") or not on_host:
            host = _converted(lambda: obj, dtype, causes)
        if host is None and on_host:  # e.g. PyTorch's bfloat16, which its __array__ does not support
            host = _converted(
                lambda: tensor.enter_context(dlpack.ConsumedTensor(obj.__dlpack__())).host(), dtype, causes
            )
        if host is None:
            raise DtypeError(
                f"this {_name(obj)} cannot be converted to an array ({'; '.join(causes)}).",
                fix="pass an object that np.asarray accepts.",
            )
        yield host


def _converted(
    contents: Callable[[], Any], dtype: np.dtype[Any] | None, causes: list[str]
) -> np.ndarray[Any, Any] | None:
    """Returns contents as a host array in C order. If that fails, adds the cause to `causes` and returns None."""
    try:
        return np.asarray(contents(), dtype, order="C")
    except HearthError:
        raise
    except CONVERSION_FAILURES as error:
        causes.append(f"{error}")
        return None


def gpu_memory_of(obj: Any, producer: int | None = None) -> GpuMemory | None:
    """Describes an object's GPU memory; returns None if the object has none.

    Args:
        obj: The object.
        producer: Handle of the CUDA stream on which the caller has made the contents; None: unknown.

    Raises:
        UnsupportedError: The memory is not contiguous, or the object supports DLPack for a device that is neither host
            nor CUDA.
    """
    try:
        interface = getattr(obj, "__cuda_array_interface__", None)
    except CONVERSION_FAILURES as error:  # PyTorch raises for a tensor with gradients
        raise UnsupportedError(
            f"this {_name(obj)} does not export its memory: {error}.",
            fix="detach it first: t.detach().",
        ) from None
    if isinstance(interface, dict):
        dtype = np.dtype(interface["typestr"])
        shape = tuple(int(axis) for axis in interface["shape"])
        strides = interface.get("strides") or layouts.strides_of(shape, dtype.itemsize)
        known = tuple(stream for stream in (interface.get("stream"), producer) if stream is not None)
        return GpuMemory(_dense(obj, interface["data"][0], shape, strides, dtype), shape, dtype, known or None)
    kind = _dlpack_device(obj)[0]
    if kind == dlpack.CUDA:
        # The producer makes the stream wait for the contents; DLPack's number of the legacy default stream is 1.
        keywords = {} if producer is None else {"stream": producer or _LEGACY_DEFAULT}
        with dlpack.ConsumedTensor(obj.__dlpack__(**keywords)) as tensor:
            address = _dense(obj, tensor.address, tensor.shape, tensor.strides, tensor.dtype)
            # the memory remains valid because the object keeps it
            return GpuMemory(address, tensor.shape, tensor.dtype, None if producer is None else (producer,))
    if kind not in (0, dlpack.CPU, dlpack.CUDA_HOST) and not hasattr(obj, "__array__"):
        raise UnsupportedError(
            f"this {_name(obj)} is on a device of DLPack type {kind}, which cannot be read here.",
            fix="pass it from host memory.",
        )
    return None


def copy_to_device(obj: Any, memory: GpuMemory, device: DeviceContext[A], stream: BaseStream | None) -> A:
    """Copies GPU memory of this process to a new array on a device. Blocks until the copy is complete, for both sides.

    Args:
        obj: The object that owns the memory.
        memory: The memory.
        device: The device.
        stream: Stream of the allocation; None: the current one.

    Returns:
        The new array.

    Raises:
        UnsupportedError: This process cannot map memory of the device.
    """
    from hearth.arrays.allocation import allocate
    from hearth.interop import ipc

    gpu = local_gpu(obj, device)
    array = allocate(device, memory.shape, shapes.dtype_of(memory.dtype), stream)
    if array.nbytes:
        try:
            view = ipc.export(array)
        except UnsupportedError as error:
            raise _unreachable(obj, device, error) from error
        with view:
            gpu.copy(view.address, memory.address, array.nbytes, memory.streams)
    return array


def local_gpu(obj: Any, device: DeviceContext[Any]) -> CudaDevice:
    """Finds the GPU of this process that is the same as a device of the session.

    Args:
        obj: The object that is to be copied, named in the error.
        device: The device of the session.

    Returns:
        The GPU, as this process sees it.

    Raises:
        UnsupportedError: This process does not have that GPU, or the device is no GPU.
    """
    from hearth.interop.cuda_driver import CudaDevice
    from hearth.interop.ipc_memory import device_of

    try:
        gpu = device_of(device.properties)
        if not isinstance(gpu, CudaDevice):
            raise UnsupportedError(f"device {device.ordinal} is not a GPU.", fix=_TO_HOST)
    except UnsupportedError as error:
        raise _unreachable(obj, device, error) from error
    return gpu


def _unreachable(obj: Any, device: DeviceContext[Any], error: UnsupportedError) -> UnsupportedError:
    return UnsupportedError(
        f"this {_name(obj)} is in GPU memory of this process, from which it cannot be copied to device "
        f"{device.ordinal}: {error.message}",
        fix=_TO_HOST,
        details=error.details,
    )


def _dense(obj: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    rows = layouts.rows_of(shape, tuple(strides), dtype.itemsize)
    if rows is None or not rows.dense:
        raise UnsupportedError(
            f"this {_name(obj)} of shape {shape} is not contiguous (strides {tuple(strides)}).",
            fix="make it contiguous first: cupy.ascontiguousarray(a), or t.contiguous() for PyTorch.",
        )
    return address


def _dlpack_device(obj: Any) -> tuple[int, int]:
    """Returns DLPack's device type and number of `obj`; type 0: the object does not support DLPack."""
    method = getattr(type(obj), "__dlpack_device__", None)
    if method is None or not hasattr(type(obj), "__dlpack__"):
        return 0, 0
    try:
        kind, number = method(obj)
        return int(kind), int(number)
    except CONVERSION_FAILURES:
        return 0, 0


def _name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
