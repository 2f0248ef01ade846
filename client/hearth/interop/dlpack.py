"""DLPack capsules, through ctypes: https://dmlc.github.io/dlpack/latest/ (versions 0.8 and 1.0).

Covers both directions: capsules for consumers of Hearth's arrays, and capsules of other producers.
"""

from __future__ import annotations

import ctypes
import itertools
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import TYPE_CHECKING, Any

from hearth import shapes
from hearth_proto import layouts

if TYPE_CHECKING:
    import numpy as np

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""kDLCPU, kDLCUDA, kDLCUDAHost."""

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool, by NumPy's kind."""
_NAMED = {
    "bfloat16": 4, "float8_e3m4": 7, "float8_e4m3": 8, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14,
}  # fmt: skip
"""DLPack type codes of the dtypes of `ml_dtypes`, by name."""
_NAME = b"dltensor"
_NAME_VERSIONED = b"dltensor_versioned"
_IS_COPIED = 2
"""DLPACK_FLAG_BITMASK_IS_COPIED"""


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned.

    A consumer that receives the older structure instead must treat the memory as read-only.
    """


_Deleter = CFUNCTYPE(None, POINTER(_Managed))
_VersionedDeleter = CFUNCTYPE(None, POINTER(_Versioned))
_Destructor = CFUNCTYPE(None, c_void_p)
_Managed._fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter))
_Versioned._fields_ = (
    ("major", c_uint32),
    ("minor", c_uint32),
    ("context", c_void_p),
    ("deleter", _VersionedDeleter),
    ("flags", c_uint64),
    ("tensor", _Tensor),
)

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (c_void_p, c_char_p, _Destructor)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, (c_void_p, c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (c_void_p, c_char_p)
_raise_pending = ctypes.pythonapi.PyErr_Occurred
"""Raises the error that C code has set, as every function of `ctypes.pythonapi` does; otherwise has no effect."""
_raise_pending.restype, _raise_pending.argtypes = c_void_p, ()

_numbers = itertools.count(1)
_owners: dict[int, tuple[Any, ...]] = {}
"""Objects that each exported tensor keeps alive, by the tensor's `context`."""


def exported() -> int:
    """Returns the number of exported tensors that neither their consumer nor their capsule has released."""
    return len(_owners)


def _delete(managed: Any) -> None:
    """Deleter of an exported tensor; the consumer calls it once, from any thread."""
    _owners.pop(managed.contents.context or 0, None)


def _destroy(capsule: int) -> None:
    """Destructor of a capsule.

    A consumer that has taken the tensor has renamed the capsule, and calls the deleter itself. One that refuses the
    tensor has usually set its error before the capsule ends. No function of Python can be called while that is set, and
    a callback of ctypes cannot leave it set: the error is reported by `sys.unraisablehook`.
    """
    try:
        _raise_pending()
    finally:
        for name, kind in ((_NAME, _Managed), (_NAME_VERSIONED, _Versioned)):
            if _is_valid(capsule, name):
                _delete(ctypes.cast(_pointer(capsule, name), POINTER(kind)))


_deleter, _versioned_deleter = _Deleter(_delete), _VersionedDeleter(_delete)
_destructor = _Destructor(_destroy)  # these three objects must stay alive, because C code has their addresses


def type_code(dtype: Any, strides: tuple[int, ...]) -> int:
    """Returns DLPack's code of a dtype.

    Args:
        dtype: Type of the elements of an array.
        strides: Bytes from one element of the array to the next along each axis.

    Raises:
        BufferError: DLPack has no code for the dtype, or cannot express the strides.
    """
    code = _NAMED.get(dtype.name, _CODES.get(dtype.kind) if dtype.isbuiltin == 1 else None)
    if code is None or not dtype.isnative or any(stride % dtype.itemsize for stride in strides):
        raise BufferError(f"DLPack does not support arrays of {dtype} with strides {strides}")
    return code


def capsule(
    owner: object,
    address: int,
    device: tuple[int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    *,
    max_version: tuple[int, int] | None = None,
    copied: bool = False,
) -> Any:
    """Makes a capsule of an array, which keeps `owner` alive until the consumer releases it.

    From version 1.0 on, the capsule states that the consumer may write to the memory, and whether the memory is a copy.

    Args:
        owner: Object that keeps the memory alive.
        address: Address of the array's first element.
        device: DLPack's device type and number.
        shape: Elements along each axis.
        strides: Bytes from one element to the next along each axis.
        dtype: Type of the elements.
        max_version: Newest version of DLPack that the consumer supports; None: a version before 1.0.
        copied: The memory is a copy.

    Returns:
        The capsule.

    Raises:
        BufferError: See `type_code`.
    """
    code = type_code(dtype, strides)
    axes = len(shape)
    lengths = (c_int64 * max(axes, 1))(*shape)
    element_strides = (c_int64 * max(axes, 1))(*(stride // dtype.itemsize for stride in strides))
    number = next(_numbers)
    managed: Any
    if max_version is not None and max_version[0] >= 1:
        managed, name = _Versioned(major=1, minor=0, flags=_IS_COPIED if copied else 0), _NAME_VERSIONED
        managed.deleter = _versioned_deleter
    else:
        managed, name = _Managed(), _NAME
        managed.deleter = _deleter
    managed.tensor = _Tensor(address, *device, axes, code, dtype.itemsize * 8, 1, lengths, element_strides, 0)
    managed.context = number
    _owners[number] = (owner, managed, lengths, element_strides)
    try:
        return _new(ctypes.addressof(managed), name, _destructor)
    except BaseException:
        del _owners[number]
        raise


_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = c_int, (c_void_p, c_char_p)
_NAME_USED = b"used_dltensor"  # must stay alive, because a capsule stores only the address of its name


class ConsumedTensor:
    """A tensor taken from a producer's capsule, for the duration of a ``with`` block.

    The end of the block calls the producer's deleter.
    """

    def __init__(self, source: Any) -> None:
        """Raises `BufferError` if `source` is no capsule, its tensor was taken or NumPy does not have its dtype."""
        if not _is_valid(id(source), _NAME):
            raise BufferError("the object is not a DLPack capsule of a tensor, or its tensor has already been consumed")
        self._managed = ctypes.cast(_pointer(id(source), _NAME), POINTER(_Managed))
        tensor = self._managed.contents.tensor
        self.dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        itemsize = self.dtype.itemsize
        self.strides = (
            tuple(tensor.strides[axis] * itemsize for axis in range(tensor.ndim))
            if tensor.strides
            else layouts.strides_of(self.shape, itemsize)
        )
        self.address = (tensor.data or 0) + tensor.byte_offset
        _rename(id(source), _NAME_USED)

    def host(self) -> np.ndarray[Any, Any]:
        """Returns the tensor as a NumPy array without a copy, if it is in host memory.

        The array must not be used after the block.
        """
        import numpy as np

        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        lowest = highest = 0
        for length, stride in zip(self.shape, self.strides, strict=True):
            lowest, highest = lowest + min(0, stride * (length - 1)), highest + max(0, stride * (length - 1))
        memory: Any = (c_uint8 * (highest - lowest + self.dtype.itemsize)).from_address(self.address + lowest)
        return np.ndarray(self.shape, self.dtype, memory, -lowest, self.strides)

    def __enter__(self) -> ConsumedTensor:
        return self

    def __exit__(self, *_: object) -> None:
        deleter = self._managed.contents.deleter
        if deleter:
            deleter(self._managed)


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    import numpy as np

    if lanes == 1 and bits % 8 == 0:
        for name, type_code in _NAMED.items():
            dtype = shapes.named(name) if type_code == code else None
            if dtype is not None and dtype.itemsize * 8 == bits:
                return dtype
        for kind, type_code in _CODES.items():
            if type_code == code and code != _CODES["b"]:
                try:
                    return np.dtype(f"{kind}{bits // 8}")
                except TypeError:
                    break
        if code == _CODES["b"] and bits == 8:
            return np.dtype(np.bool_)
    raise BufferError(
        f"DLPack type {code} of {bits} bits and {lanes} lanes has no corresponding dtype (bfloat16 and "
        "8-bit floats require the package ml_dtypes, which is the extra hearth-gpu[ml-dtypes])"
    )
