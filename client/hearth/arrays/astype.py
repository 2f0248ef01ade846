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
extern "C" __global__ void hearth_astype(const char* from, $to* to, long long count, long long columns,
                                         long long pitch) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const $since v = ((const $since*)(from + i / columns * pitch))[i % columns];
        $to w;
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
_PARTS = {"complex64": "float", "complex128": "double"}


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
    wanted = shapes.dtype_of(dtype)
    if wanted == array.dtype:
        return array.copy(on) if copy else array
    source = kernel_source(array.dtype, wanted)
    if not np.can_cast(array.dtype, wanted, casting):
        raise DtypeError(
            f"an array of {array.dtype} cannot be cast to {wanted} with casting={casting!r}.",
            reason="INVALID_ARGUMENT",
            fix='use casting="unsafe", the default, or choose another dtype.',
        )
    array._usable()
    if isinstance(array._rows, layouts.StrideLayout):
        array = array.copy(on)
    fresh: A = array._device.empty(array.shape, wanted, on)
    if array.size:
        rows = array._as_rows()
        columns = array.size if rows.dense else rows.width // array.itemsize
        args = (array, fresh, array.size, columns, rows.pitch)
        run_kernel(array._device, source, "hearth_astype", array.size, args, on)
    return fresh


def kernel_source(since: np.dtype[Any], to: np.dtype[Any]) -> str:
    """Generates the CUDA C++ source of a conversion kernel.

    Args:
        since: Type of the source's elements.
        to: Type of the result's elements.

    Returns:
        The source of the kernel ``hearth_astype``.

    Raises:
        UnsupportedError: One of the dtypes has no C++ type here.
    """
    for dtype in (since, to):
        if not known(dtype):
            raise UnsupportedError(
                f"{since} cannot be cast to {to} on the device, where {dtype} is not supported.",
                reason="UNSUPPORTED",
                fix="cast on the host, gpu.asarray(x.get().astype(dtype)), or reinterpret the bytes: x.view(dtype).",
            )
    includes = _INCLUDES if {since.name, to.name} & {"float16", "bfloat16"} else ""
    return _SOURCE.substitute(
        includes=includes, since=_NAMES[since.name], to=_NAMES[to.name], convert=_conversion(since.name, to.name)
    )


def known(*dtypes: np.dtype[Any] | None) -> bool:
    """Returns True if the device converts between these dtypes; None stands for no dtype and counts as known."""
    return all(dtype is None or (dtype.name in _NAMES and dtype.isbuiltin != 0) for dtype in dtypes)


def _conversion(since: str, to: str) -> str:
    if to in _PARTS:
        part = _PARTS[to]
        if since in _PARTS:
            return f"w.x = ({part})v.x; w.y = ({part})v.y;"
        return f"w.x = ({part})({_plain('v', since)}); w.y = 0;"
    if since in _PARTS:
        if to == "bool":
            return "w = v.x != 0 || v.y != 0;"
        return f"w = {_narrowed('v.x', since, to)};"
    if to == "bool":
        return f"w = {_plain('v', since)} != 0;"
    return f"w = {_narrowed(_plain('v', since), since, to)};"


def _plain(value: str, dtype: str) -> str:
    """Returns the C++ expression for `value`, converted to a type with arithmetic operators."""
    return _TO_FLOAT.get(dtype, "{}").format(value)


def _narrowed(value: str, since: str, to: str) -> str:
    if to not in _FROM_FLOAT:
        return f"({_NAMES[to]})({value})"
    short = since in ("float32", "complex64", *_TO_FLOAT, "bool", "int8", "uint8", "int16", "uint16")
    # converts in one step, so that the value is rounded only once
    return (_FROM_FLOAT if short else _FROM_DOUBLE)[to].format(value)
