"""Tensor maps by the driver: what the tensor memory accelerator reads of a region."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from hearth_proto.launches import TENSOR_MAP_BYTES
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.cuda.errors import CudaError, checked, is_fatal, translate
from hearthd.device.policy import tensor_map
from hearthd.device.policy.tensor_map import TensorMapSpec, Tile

_FILLS = {"none": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}


class TensorMapOperations:
    """The part of CudaServer that makes tensor maps. Encoding is the host's work alone: some microseconds."""

    @property
    def properties(self) -> node_pb2.DeviceProperties:
        raise NotImplementedError

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        if "tensor_maps" not in self.properties.features:
            raise tensor_map.not_served(self.properties.name)
        element = tensor_map.element_of(spec.dtype)
        access = spec.access
        assert element is not None and access is not None, "checked before"
        kind = _member(driver.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE", element.name)
        strided = (
            _uint32(spec.element_strides),
            _member(driver.CUtensorMapInterleave, "CU_TENSOR_MAP_INTERLEAVE", spec.interleave),
            _member(driver.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE", spec.swizzle),
            _member(driver.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION", spec.l2_promotion),
            _member(driver.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL", _FILLS[spec.oob_fill]),
        )
        region = (kind, spec.rank, address, _uint64(spec.shape), _uint64(spec.strides))
        try:
            if isinstance(access, Tile):
                (made,) = checked(driver.cuTensorMapEncodeTiled(*region, _uint32(access.box), *strided))
            else:
                box = (
                    list(access.lower_corner),
                    list(access.upper_corner),
                    access.channels_per_pixel,
                    access.pixels_per_column,
                )
                (made,) = checked(driver.cuTensorMapEncodeIm2col(*region, *box, *strided))
        except CudaError as error:
            status = int(getattr(error, "status", 0))
            if is_fatal(status):
                raise translate(error, "making a tensor map") from error
            raise tensor_map.refuse(
                spec, [f"the driver refuses it: {error}"], "tensor map", cuda_status=status, address=f"{address:#x}"
            ) from error
        return ctypes.string_at(made.getPtr(), TENSOR_MAP_BYTES)  # type: ignore[attr-defined]


def _uint64(values: Sequence[int]) -> list[Any]:
    return [driver.cuuint64_t(value) for value in values]


def _uint32(values: Sequence[int]) -> list[Any]:
    return [driver.cuuint32_t(value) for value in values]


def _member(enumeration: Any, prefix: str, name: str) -> Any:
    """An enumerator by its name without prefix; those that came later are missing in older bindings."""
    found = getattr(enumeration, f"{prefix}_{name.upper()}", None)
    if found is None:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"{prefix}_{name.upper()} is not known to this version of CUDA's bindings",
            fix="install cuda-bindings of CUDA 12.8 or newer on the node",
            details={"feature": name},
        )
    return found
