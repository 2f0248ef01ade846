"""Mapping of a GPU's memory into this process by the CUDA driver (libcuda), through ctypes; needs no CUDA package.

The daemon's memory is physical memory allocated by `cuMemCreate`, which is received as an open file. Physical memory
exists as long as any process maps it, so it does not matter which of the two processes ends first; only that one
allocation is mapped here. See CUDA's Driver API and Programming Guide, chapters on virtual memory management.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from hearth.errors import HearthError, UnsupportedError

_POSIX_FILE_DESCRIPTOR = 1
"""CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"""
_LOCATION_DEVICE = 1
"""CU_MEM_LOCATION_TYPE_DEVICE"""
_READ_WRITE = 3
"""CU_MEM_ACCESS_FLAGS_PROT_READWRITE"""
_DEINITIALIZED = 4
"""CUDA_ERROR_DEINITIALIZED: the process is about to exit."""
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE: CUDA_VISIBLE_DEVICES hides every GPU, or there is none."""
_DEVICE_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"""
_KDLCUDA = 2


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", c_int))


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (POINTER(_Uuid), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (c_void_p,),
    "cuPointerGetAttribute": (POINTER(c_int), c_int, c_ulonglong),
    "cuMemcpy": (c_ulonglong, c_ulonglong, c_size_t),
    "cuMemImportFromShareableHandle": (POINTER(c_ulonglong), c_void_p, c_int),
    "cuMemAddressReserve": (POINTER(c_ulonglong), c_size_t, c_size_t, c_ulonglong, c_ulonglong),
    "cuMemMap": (c_ulonglong, c_size_t, c_size_t, c_ulonglong, c_ulonglong),
    "cuMemSetAccess": (c_ulonglong, c_size_t, POINTER(_AccessDesc), c_size_t),
    "cuMemUnmap": (c_ulonglong, c_size_t),
    "cuMemRelease": (c_ulonglong,),
    "cuMemAddressFree": (c_ulonglong, c_size_t),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}


class DriverError(HearthError):
    """A call of the CUDA driver in this process failed."""

    def __init__(self, call: str, status: int, name: str) -> None:
        self.status_text = f"{name} ({status})"
        super().__init__(
            f"{call} failed in this process: {self.status_text}.",
            reason="UNSUPPORTED",
            fix="check that this process can use the GPU (nvidia-smi, CUDA_VISIBLE_DEVICES) and has had no CUDA error.",
        )
        self.status = status


class Driver:
    """The functions of libcuda, with checks of their status."""

    def __init__(self, library: Any) -> None:
        """Raises AttributeError if the driver is too old for one of the functions."""
        self._functions = {}
        for name, types in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
            self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver.

        Args:
            name: Name of the function.
            *arguments: Arguments of the function.

        Raises:
            DriverError: The function returned an error.
        """
        status = self._functions[name](*arguments)
        if status:
            text = c_char_p()
            self._functions["cuGetErrorName"](status, byref(text))
            raise DriverError(name, status, (text.value or b"unknown error").decode())


class CudaDevice:
    """A GPU and its primary context in this process, which CuPy and PyTorch also use."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self._driver = driver
        self.ordinal = ordinal
        self.dlpack_device = (_KDLCUDA, ordinal)
        self._context = c_void_p()
        device = c_int()
        driver.call("cuDeviceGet", byref(device), ordinal)
        driver.call("cuDevicePrimaryCtxRetain", byref(self._context), device)

    def map(self, file: int, size: int) -> CudaMapping:
        """Maps memory that the daemon has exported.

        Args:
            file: Descriptor of the memory, which remains the caller's.
            size: Size of the allocation in bytes.

        Returns:
            The mapping.

        Raises:
            DriverError: The driver cannot map the memory.
        """
        driver, handle, address = self._driver, c_ulonglong(), c_ulonglong()
        with _CurrentContext(driver, self._context):
            driver.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(file), _POSIX_FILE_DESCRIPTOR)
            with ExitStack() as release, ExitStack() as undo:
                release.callback(driver.call, "cuMemRelease", handle)  # the mapping keeps the memory
                driver.call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
                undo.callback(driver.call, "cuMemAddressFree", address, size)
                driver.call("cuMemMap", address, size, 0, handle, 0)
                undo.callback(driver.call, "cuMemUnmap", address, size)
                access = _AccessDesc(_Location(_LOCATION_DEVICE, self.ordinal), _READ_WRITE)
                driver.call("cuMemSetAccess", address, size, byref(access), 1)
                undo.pop_all()
        return CudaMapping(self, address.value, size)

    def copy(self, destination: int, source: int, size: int, streams: Sequence[int] | None) -> None:
        """Copies bytes from any GPU of this process to memory that is mapped here. Blocks until the copy is complete.

        Args:
            destination: Address of the destination.
            source: Address of the source.
            size: Number of bytes.
            streams: Handles of the streams whose earlier work the copy waits for; None: all work of this process on
                the source's GPU.

        Raises:
            DriverError: A call of the driver failed.
        """
        driver, ordinal = self._driver, c_int()
        driver.call("cuPointerGetAttribute", byref(ordinal), _DEVICE_ORDINAL, source)
        source_device = self if ordinal.value == self.ordinal else CudaDevice(driver, ordinal.value)
        with _CurrentContext(driver, source_device._context):
            if streams is None:
                driver.call("cuCtxSynchronize")
            for stream in streams or ():
                driver.call("cuStreamSynchronize", c_void_p(stream))
        with _CurrentContext(driver, self._context):
            driver.call("cuMemcpy", destination, source, size)
            driver.call("cuCtxSynchronize")

    def unmap(self, address: int, size: int) -> None:
        """Unmaps memory after all work of this process on the GPU is done. Blocks.

        Args:
            address: Address of the mapping.
            size: Size of the mapping in bytes.

        Raises:
            DriverError: A call of the driver failed.
        """
        driver = self._driver
        try:
            with _CurrentContext(driver, self._context):
                driver.call("cuCtxSynchronize")
                driver.call("cuMemUnmap", address, size)
                driver.call("cuMemAddressFree", address, size)
        except DriverError as error:
            if error.status != _DEINITIALIZED:
                raise


class _CurrentContext:
    """Makes a context current in this thread for the duration of a ``with`` block."""

    def __init__(self, driver: Driver, context: c_void_p) -> None:
        self._driver = driver
        self._context = context

    def __enter__(self) -> None:
        self._driver.call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        self._driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))


class CudaMapping:
    """GPU memory that is mapped here."""

    cuda = True

    def __init__(self, device: CudaDevice, address: int, size: int) -> None:
        self.address = address
        self.dlpack_device = device.dlpack_device
        self._device = device
        self._size = size
        self._lock = threading.Lock()

    def close(self) -> None:
        """Unmaps the memory after all work of this process on the GPU is done. Blocks.

        A second call does nothing. Raises `DriverError`.
        """
        with self._lock:
            size, self._size = self._size, 0
        if size:
            self._device.unmap(self.address, size)


def load(names: tuple[str, ...] = ("libcuda.so.1", "libcuda.so")) -> Driver:
    """Loads this process's CUDA driver.

    Raises `UnsupportedError` if there is no driver, the driver is too old, or it cannot be used in this process: it
    sees no GPU, does not match the kernel module, or was used before a fork.
    """
    cause = ""
    for name in names:
        try:
            driver = Driver(ctypes.CDLL(name))
        except (OSError, AttributeError) as error:
            cause = cause or str(error)
            continue
        try:
            driver.call("cuInit", 0)
        except DriverError as error:
            raise _unusable(error) from error
        return driver
    raise UnsupportedError(
        f"this process has no CUDA driver, which is required to map exported memory: {cause}.",
        fix="run the program where the GPU's driver is installed (containers: --gpus all), or copy with x.get().",
    )


def _unusable(error: DriverError) -> UnsupportedError:
    fix = "check that nvidia-smi works in this environment, and the value of CUDA_VISIBLE_DEVICES"
    if error.status == _NO_DEVICE:
        fix = "unset CUDA_VISIBLE_DEVICES, or set it to the daemon's GPU (containers: --gpus all)"
    return UnsupportedError(
        f"this process can use no GPU, so it cannot map exported memory: cuInit returned {error.status_text}.",
        fix=f"{fix}; or copy with x.get().",
        details={"status": str(error.status)},
    )


_driver = functools.cache(load)
_lock = threading.Lock()
_devices: dict[str, CudaDevice] = {}


def device_of_uuid(uuid: str, name: str) -> CudaDevice:
    """Finds the GPU of a UUID in this process.

    Args:
        uuid: UUID in the format of `nvidia-smi -L`.
        name: Name of the GPU, for the error.

    Returns:
        The GPU.

    Raises:
        UnsupportedError: This process has no such GPU, or no usable driver.
    """
    with _lock:
        device = _devices.get(uuid)
        if device is None:
            driver = _driver()
            device = _devices[uuid] = CudaDevice(driver, _ordinal(driver, uuid, name))
        return device


def _ordinal(driver: Driver, uuid: str, name: str) -> int:
    count = c_int()
    driver.call("cuDeviceGetCount", byref(count))
    uuids: list[str] = []
    for ordinal in range(count.value):
        device, raw = c_int(), _Uuid()
        driver.call("cuDeviceGet", byref(device), ordinal)
        driver.call("cuDeviceGetUuid_v2", byref(raw), device)
        uuids.append(format_uuid(bytes(raw.bytes)))
        if uuids[-1] == uuid:
            return ordinal
    raise UnsupportedError(
        f"this process does not see the daemon's GPU {uuid} ({name}); it sees {', '.join(uuids) or 'none'}.",
        fix="run the program on the daemon's host, with CUDA_VISIBLE_DEVICES set to that GPU, or copy with x.get().",
        details={"requested": uuid, "visible": ", ".join(uuids)},
    )


def format_uuid(raw: bytes) -> str:
    """Formats a UUID as NVML does."""
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
