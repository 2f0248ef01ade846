"""Conversion of arrays to another dtype on the device, by a kernel that is compiled once for each pair of dtypes.

A value that the new dtype cannot represent is converted as C++ does on that device, as in CuPy.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from hearth import shapes
from hearth.arrays.strided_copy import run_kernel
from hearth.errors import DtypeError, UnsupportedError
from hearth_proto import layouts

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike

A = TypeVar("A", bound="ArrayLike")
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]

_SOURCE = string.Template(r"""
$includes
extern "C" __global__ void hearth_astype(const char* from, $to_type* to, long long count, long long columns,
                                         long long pitch) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const $from_type v = ((const $from_type*)(from + i / columns * pitch))[i % columns];
        $to_type w;
        $convert
        to[i] = w;
    }
}
""")
_INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
_NAMES = {
    "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
    "float16": "__half", "float32": "float", "float64": "double", "bfloat16": "__nv_bfloat16",
    "complex64": "float2", "complex128": "double2",
}  # fmt: skip
_TO_FLOAT = {"float16": "__half2float({})", "bfloat16": "__bfloat162float({})"}
_FROM_DOUBLE = {"float16": "__double2half((double)({}))", "bfloat16": "__double2bfloat16((double)({}))"}
_FROM_FLOAT = {"float16": "__float2half({})", "bfloat16": "__float2bfloat16({})"}
_COMPONENTS = {"complex64": "float", "complex128": "double"}


def astype(array: A, dtype: Any, on: BaseStream | None, casting: Casting, copy: bool) -> A:
    """Converts an array; see `BaseArray.astype`.

    Args:
        array: The array.
        dtype: Type of the new elements.
        on: Stream that orders the conversion; None: the current one.
        casting: Conversions that are allowed, as in NumPy.
        copy: False returns `array` itself if it has the dtype already.

    Returns:
        The converted array.

    Raises:
        UnsupportedError: The device does not convert between these dtypes.
        DtypeError: `casting` forbids the conversion.
    """
    target = shapes.dtype_of(dtype)
    if target == array.dtype:
        return array.copy(on) if copy else array
    source = kernel_source(array.dtype, target)
    if not np.can_cast(array.dtype, target, casting):
        raise DtypeError(
            f"an array of {array.dtype} cannot be cast to {target} with casting={casting!r}.",
            fix='use casting="unsafe", the default, or choose another dtype.',
        )
    array._usable()
    if isinstance(array._rows, layouts.StrideLayout) or not _is_aligned(array):
        array = array.copy(on)
    result: A = array._device.empty(array.shape, target, on)
    if array.size:
        rows = array._as_rows()
        columns = array.size if rows.dense else rows.width // array.itemsize
        args = (array, result, array.size, columns, rows.pitch)
        run_kernel(array._device, source, "hearth_astype", array.size, args, on)
    return result


def kernel_source(from_dtype: np.dtype[Any], to_dtype: np.dtype[Any]) -> str:
    """Generates the CUDA C++ source of a conversion kernel.

    Args:
        from_dtype: Type of the source's elements.
        to_dtype: Type of the result's elements.

    Returns:
        The source of the kernel ``hearth_astype``.

    Raises:
        UnsupportedError: One of the dtypes has no C++ type here.
    """
    for dtype in (from_dtype, to_dtype):
        if not is_supported(dtype):
            raise UnsupportedError(
                f"{from_dtype} cannot be cast to {to_dtype} on the device, where {dtype} is not supported.",
                fix="cast on the host, gpu.asarray(x.get().astype(dtype)), or reinterpret the bytes: x.view(dtype).",
            )
    includes = _INCLUDES if {from_dtype.name, to_dtype.name} & {"float16", "bfloat16"} else ""
    return _SOURCE.substitute(
        includes=includes,
        from_type="unsigned char" if from_dtype.kind == "b" else _NAMES[from_dtype.name],
        to_type=_NAMES[to_dtype.name],
        convert=_conversion(from_dtype.name, to_dtype.name),
    )


def _is_aligned(array: ArrayLike) -> bool:
    """Returns True if the addresses of all elements are multiples of their size, as a GPU requires of reads."""
    return array._offset % array.itemsize == 0 == array._as_rows().pitch % array.itemsize


def is_supported(*dtypes: np.dtype[Any] | None) -> bool:
    """Returns True if the device converts between these dtypes; None means no dtype and counts as known."""
    return all(dtype is None or (dtype.name in _NAMES and dtype.isbuiltin != 0) for dtype in dtypes)


def _conversion(from_name: str, to_name: str) -> str:
    if to_name in _COMPONENTS:
        component = _COMPONENTS[to_name]
        if from_name in _COMPONENTS:
            return f"w.x = ({component})v.x; w.y = ({component})v.y;"
        return f"w.x = ({component})({_plain('v', from_name)}); w.y = 0;"
    if from_name in _COMPONENTS:
        if to_name == "bool":
            return "w = v.x != 0 || v.y != 0;"
        return f"w = {_narrowed('v.x', from_name, to_name)};"
    if to_name == "bool":
        return f"w = {_plain('v', from_name)} != 0;"
    return f"w = {_narrowed(_plain('v', from_name), from_name, to_name)};"


def _plain(value: str, dtype: str) -> str:
    """Returns the C++ expression for `value`, converted to a type with arithmetic operators."""
    if dtype == "bool":  # bytes other than 0 and 1 are true as well
        return f"({value} != 0)"
    return _TO_FLOAT.get(dtype, "{}").format(value)


def _narrowed(value: str, from_name: str, to_name: str) -> str:
    if to_name not in _FROM_FLOAT:
        return f"({_NAMES[to_name]})({value})"
    short = from_name in ("float32", "complex64", *_TO_FLOAT, "bool", "int8", "uint8", "int16", "uint16")
    # converts in one step, so that the value is rounded only once
    return (_FROM_FLOAT if short else _FROM_DOUBLE)[to_name].format(value)
