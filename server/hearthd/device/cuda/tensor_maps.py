"""Encoding of tensor maps by the driver: the description of a region that the tensor memory accelerator reads."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from hearth_proto.launches import TENSOR_MAP_BYTES
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.backend import tensor_map
from hearthd.device.backend.tensor_map import Im2colWide, TensorMapSpec, Tile
from hearthd.device.cuda.errors import CudaError, checked, is_fatal, translate

_ALIGNMENT = 128
"""alignof(CUtensorMap) in bytes, from cuda.h of CUDA 13; the driver requires only 64."""

_FILLS = {"none": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
_INT, _U32, _POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
_REGION = (_POINTER, _INT, _U32, _POINTER, _POINTER, _POINTER)  # the result, type, rank, address, sizes, strides
_FORM = (_INT, _INT, _INT)  # swizzle, L2 promotion, fill
_ARGUMENTS = {
    "Tiled": (*_REGION, _POINTER, _POINTER, _INT, *_FORM),  # box, element strides, interleave
    "Im2col": (*_REGION, _POINTER, _POINTER, _U32, _U32, _POINTER, _INT, *_FORM),  # corners, channels, pixels, ...
    "Im2colWide": (*_REGION, _INT, _INT, _U32, _U32, _POINTER, _INT, _INT, *_FORM),  # the same, with the mode
}
"""Argument types of cuTensorMapEncode..., by the end of its name."""

_WIDE_MODES = {"w": 0, "w128": 1}
"""CUtensorMapIm2ColWideMode, cuda.h of CUDA 12.8; bindings of CUDA 12.0 to 12.7 do not have it."""


def encode_tensor_map(properties: node_pb2.DeviceProperties, spec: TensorMapSpec, address: int) -> bytes:
    """Encodes the map with the driver's cuTensorMapEncode function of the access mode, for a device of `properties`.

    Runs on the host, and takes some microseconds.

    Raises Refusal(TENSOR_MAP_INVALID), Refusal(UNSUPPORTED).
    """
    tensor_map.check_features(spec, properties.features, properties.name)
    element = tensor_map.element_of(spec.dtype)
    access = spec.access
    assert element is not None and access is not None, "checked before"
    kind = _member(driver.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE", element.name)
    element_strides = _array(_U32, spec.element_strides)
    interleave = _member(driver.CUtensorMapInterleave, "CU_TENSOR_MAP_INTERLEAVE", spec.interleave)
    form = (
        _member(driver.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE", spec.swizzle),
        _member(driver.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION", spec.l2_promotion),
        _member(driver.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL", _FILLS[spec.oob_fill]),
    )
    buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + _ALIGNMENT)
    offset = -ctypes.addressof(buffer) % _ALIGNMENT
    sizes, strides = _array(ctypes.c_uint64, spec.shape), _array(ctypes.c_uint64, spec.strides or (0,))
    region = (ctypes.addressof(buffer) + offset, kind, spec.rank, address, sizes, strides)
    if isinstance(access, Tile):
        status = _encoder("Tiled")(*region, _array(_U32, access.box), element_strides, interleave, *form)
    elif isinstance(access, Im2colWide):
        mode = _WIDE_MODES[access.mode]
        pixels = access.channels_per_pixel, access.pixels_per_column or tensor_map.WIDE_MODES[access.mode]
        corners = access.lower_corner_width, access.upper_corner_width
        status = _encoder("Im2colWide")(*region, *corners, *pixels, element_strides, interleave, mode, *form)
    else:
        pixels = access.channels_per_pixel, access.pixels_per_column
        edges = _array(_INT, access.lower_corner), _array(_INT, access.upper_corner)
        status = _encoder("Im2col")(*region, *edges, *pixels, element_strides, interleave, *form)
    _check(status, spec, address)
    return buffer.raw[offset : offset + TENSOR_MAP_BYTES]


def _check(status: int, spec: TensorMapSpec, address: int) -> None:
    try:
        checked((status,))
    except CudaError as error:
        if is_fatal(error):
            raise translate(error, "making a tensor map") from error
        raise tensor_map.refuse(
            spec, [f"the driver refuses it: {error}"], "tensor map", cuda_status=status, address=f"{address:#x}"
        ) from error


def tensor_map_features(capability_major: int) -> list[str]:
    """Returns the names of the kinds of tensor maps that the device and the driver have."""
    if capability_major < 9:
        return []
    if capability_major < 10 or not hasattr(_library(), "cuTensorMapEncodeIm2colWide"):
        return ["tensor_maps"]
    return ["tensor_maps", "tensor_map_im2col_wide", "tensor_map_swizzle_atoms"]  # the driver is of CUDA 12.8 or newer


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _encoder(kind: str) -> Any:
    """Returns the driver's cuTensorMapEncode... of this kind.

    The functions of cuda-bindings are not used: they keep the result inside a Python object that is aligned to 16 bytes
    only, and crash if the compiler relied on the type's own alignment.
    """
    encode = getattr(_library(), f"cuTensorMapEncode{kind}", None)
    if encode is None:  # Im2colWide: `tensor_map_features` has asked the same library
        raise tensor_map.missing_feature("the driver", "tensor_map_im2col_wide")
    encode.argtypes = _ARGUMENTS[kind]
    encode.restype = _INT
    return encode


def _array(kind: Any, values: Sequence[int]) -> Any:
    """Returns a C array. The driver accepts no null pointer, not even for the strides of a single dimension."""
    return (kind * len(values))(*values)


def _member(enumeration: Any, prefix: str, name: str) -> int:
    """Returns an enumerator's value by its name without the prefix.

    Raises Refusal(UNSUPPORTED) if older bindings lack it.
    """
    value = getattr(enumeration, f"{prefix}_{name.upper()}", None)
    if value is None:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"{prefix}_{name.upper()} is not known to this version of CUDA's bindings",
            fix="install cuda-bindings of CUDA 12.8 or newer on the node",
            details={"feature": name},
        )
    return int(value)
