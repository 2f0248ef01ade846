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
from hearthd.device.backend.tensor_map import TensorMapSpec, Tile
from hearthd.device.cuda.errors import CudaError, checked, is_fatal, translate

_ALIGNMENT = 128
"""alignof(CUtensorMap) in bytes, from cuda.h of CUDA 13; the driver requires only 64."""

_FILLS = {"none": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
_INT, _U32, _POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
_REGION = (_POINTER, _INT, _U32, _POINTER, _POINTER, _POINTER)  # the result, type, rank, address, sizes, strides
_FORM = (_POINTER, _INT, _INT, _INT, _INT)  # element strides, interleave, swizzle, L2 promotion, fill


class TensorMapEncoder:
    """Encodes tensor maps for a device with these properties. Encoding runs on the host and takes some microseconds."""

    def __init__(self, properties: node_pb2.DeviceProperties) -> None:
        self._properties = properties

    def encode(self, spec: TensorMapSpec, address: int) -> bytes:
        if "tensor_maps" not in self._properties.features:
            raise tensor_map.not_served(self._properties.name)
        element = tensor_map.element_of(spec.dtype)
        access = spec.access
        assert element is not None and access is not None, "checked before"
        kind = _member(driver.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE", element.name)
        form = (
            _array(_U32, spec.element_strides),
            _member(driver.CUtensorMapInterleave, "CU_TENSOR_MAP_INTERLEAVE", spec.interleave),
            _member(driver.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE", spec.swizzle),
            _member(driver.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION", spec.l2_promotion),
            _member(driver.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL", _FILLS[spec.oob_fill]),
        )
        room = ctypes.create_string_buffer(TENSOR_MAP_BYTES + _ALIGNMENT)
        start = -ctypes.addressof(room) % _ALIGNMENT
        sizes, strides = _array(ctypes.c_uint64, spec.shape), _array(ctypes.c_uint64, spec.strides or (0,))
        region = (ctypes.addressof(room) + start, kind, spec.rank, address, sizes, strides)
        tiled, im2col = _encoders()
        if isinstance(access, Tile):
            status = tiled(*region, _array(_U32, access.box), *form)
        else:
            corners = _array(_INT, access.lower_corner), _array(_INT, access.upper_corner)
            status = im2col(*region, *corners, access.channels_per_pixel, access.pixels_per_column, *form)
        _check(status, spec, address)
        return room.raw[start : start + TENSOR_MAP_BYTES]


def _check(status: int, spec: TensorMapSpec, address: int) -> None:
    try:
        checked((status,))
    except CudaError as error:
        if is_fatal(status):
            raise translate(error, "making a tensor map") from error
        raise tensor_map.refuse(
            spec, [f"the driver refuses it: {error}"], "tensor map", cuda_status=status, address=f"{address:#x}"
        ) from error


@functools.cache
def _encoders() -> tuple[Any, Any]:
    """Returns cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col.

    The functions of cuda-bindings are not used: they keep the result inside a Python object that is aligned to 16 bytes
    only, and crash if the compiler relied on the type's own alignment.
    """
    library = ctypes.CDLL("libcuda.so.1")
    tiled, im2col = library.cuTensorMapEncodeTiled, library.cuTensorMapEncodeIm2col
    tiled.argtypes = (*_REGION, _POINTER, *_FORM)
    im2col.argtypes = (*_REGION, _POINTER, _POINTER, _U32, _U32, *_FORM)
    tiled.restype = im2col.restype = _INT
    return tiled, im2col


def _array(kind: Any, values: Sequence[int]) -> Any:
    """Returns a C array. The driver accepts no null pointer, not even for the strides of a single dimension."""
    return (kind * len(values))(*values)


def _member(enumeration: Any, prefix: str, name: str) -> int:
    """Returns an enumerator's value by its name without the prefix. Raises Refusal(UNSUPPORTED) if older bindings lack
    it."""
    found = getattr(enumeration, f"{prefix}_{name.upper()}", None)
    if found is None:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"{prefix}_{name.upper()} is not known to this version of CUDA's bindings",
            fix="install cuda-bindings of CUDA 12.8 or newer on the node",
            details={"feature": name},
        )
    return int(found)
