"""DLPack capsules, by ctypes: https://dmlc.github.io/dlpack/latest/ (version 0.8, `DLManagedTensor`)."""

from __future__ import annotations

import ctypes
import itertools
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool, by NumPy's kind."""
_BFLOAT = 4
_NAME = b"dltensor"


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


_Deleter = CFUNCTYPE(None, POINTER(_Managed))
_Destructor = CFUNCTYPE(None, c_void_p)
_Managed._fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter))

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (c_void_p, c_char_p, _Destructor)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, (c_void_p, c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (c_void_p, c_char_p)

_numbers = itertools.count(1)
_kept: dict[int, tuple[Any, ...]] = {}
"""What each tensor that is out needs, by its `context`."""


def _delete(managed: Any) -> None:
    """Called by whoever took the tensor, once it needs it no more: in any thread."""
    _kept.pop(managed.contents.context or 0, None)


def _destroy(capsule: int) -> None:
    """Of the capsule: who has taken the tensor has renamed it, and calls the deleter itself."""
    if _is_valid(capsule, _NAME):
        _delete(ctypes.cast(_pointer(capsule, _NAME), POINTER(_Managed)))


_deleter, _destructor = _Deleter(_delete), _Destructor(_destroy)  # kept: C code has their addresses


def capsule(
    owner: object, address: int, device: tuple[int, int], shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
) -> Any:
    """A capsule of the array at `address` (`strides` in bytes), which keeps `owner` while anybody has it.

    Raises `BufferError` for what DLPack has no name for.
    """
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None or not dtype.isnative or any(step % dtype.itemsize for step in strides):
        raise BufferError(f"DLPack has no arrays of {dtype} like this one")
    axes = len(shape)
    lengths = (c_int64 * max(axes, 1))(*shape)
    steps = (c_int64 * max(axes, 1))(*(step // dtype.itemsize for step in strides))
    number = next(_numbers)
    managed = _Managed()
    managed.tensor = _Tensor(address, *device, axes, code, dtype.itemsize * 8, 1, lengths, steps, 0)
    managed.context = number
    managed.deleter = _deleter
    _kept[number] = (owner, managed, lengths, steps)
    try:
        return _new(ctypes.addressof(managed), _NAME, _destructor)
    except BaseException:
        del _kept[number]
        raise
