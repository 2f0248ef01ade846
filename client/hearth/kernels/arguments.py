"""Packing of kernel arguments into a launch record: the parameter block, laid out by C's rules, and its buffers.

==================================================== ======================================= ========================
argument                                             passed as                               alignment
==================================================== ======================================= ========================
`DeviceArray`, `pointer(array)`, `read_only(array)`  pointer                                 8
`TensorMap`, `read_only(tensor_map)`                 `const __grid_constant__ CUtensorMap`   64
NumPy or ml_dtypes scalar, 0-d array                 the same C type                         its size; `long double`:
                                                                                             the dtype's
complex64, complex128                                `cuComplex`, `thrust::complex`          8, 16
NumPy array of one element, not of 8 bytes           the same C type, as in CuPy             as a scalar's
bool, float, complex                                 `bool`, `double`, `complex<double>`,    1, 8, 16
                                                     as in CuPy
int                                                  the parameter's integer type            8
None                                                 null pointer                            8
structured scalar (`np.void`)                        struct of the dtype's bytes; fields of  the dtype's: use
                                                     dtype object are pointers               `np.dtype(..., align=True)`
`bytes`                                              struct                                  8
`Struct(data, align=n, pointers={at: array})`        struct                                  n
scalar, structure or union of ctypes                 the same C type; no pointers            as in ctypes
==================================================== ======================================= ========================
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from hearth import lazy_numpy as np
from hearth.arrays.read_only import ReadOnly
from hearth.errors import LaunchError, LaunchTypeError
from hearth.kernels import record_packer
from hearth.session.memory import DeviceOperand
from hearth_proto import launches

_CODES = {("i", 1): "b", ("i", 2): "h", ("i", 4): "i", ("i", 8): "q",
          ("u", 1): "B", ("u", 2): "H", ("u", 4): "I", ("u", 8): "Q",
          ("f", 4): "f", ("f", 8): "d", ("b", 1): "?"}  # fmt: skip
"""Code of `struct` for the dtypes that have one, by kind and size in bytes."""
_ADDRESS_BYTES = 8
_NULL_BYTES = bytes(_ADDRESS_BYTES)
_DIM_MAX = 2**32 - 1
_AXES = "xyz"


class ByValue:
    """Base class of `Struct`, a kernel argument passed by value.

    `Struct` has a separate module because few programs need it and creating a dataclass takes long.
    """

    __slots__ = ()

    data: bytes
    align: int
    pointers: Mapping[int, Any]


class Parameter(NamedTuple):
    """Encoding of an argument in the parameter block: `struct` code, size and alignment in bytes."""

    code: str  # code of `struct`; empty: raw bytes
    size: int
    alignment: int
    pointer: bool = False
    read_only: bool = False
    """True for a buffer that the kernel only reads, and for an integer that the daemon converts to the parameter's
    type."""
    nested: tuple[tuple[int, bool], ...] = ()
    """Offset in bytes of each pointer in a struct, and True if the kernel only reads through it."""


_INTEGER = Parameter("q", launches.INTEGER_BYTES, 8, False, True)
_PYTHON = (
    (bool, Parameter("?", 1, 1)),  # before int, because bool is a subclass of int
    (int, _INTEGER),
    (float, Parameter("d", 8, 8)),
    (complex, Parameter("", 16, 16)),
    (type(None), Parameter("", 8, 8)),
)


class Signature:
    """All properties of a launch that depend only on the types of its arguments."""

    __slots__ = (
        "block_size",
        "exact_layout",
        "handles",
        "layout",
        "pack",
        "pack_checked",
        "parameters",
        "pointers",
        "raw",
        "size",
        "structs",
    )

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        offset = 0
        entries: list[launches.LayoutEntry] = []
        codes: list[str] = []
        for index, (code, size, alignment, pointer, read_only, nested) in enumerate(parameters):
            gap = -offset % alignment
            offset += gap
            if offset + size > launches.MAX_PARAMETER_BYTES:
                raise LaunchError(
                    f"argument {index} ends {offset + size} bytes into the parameters; a kernel has at "
                    f"most {launches.MAX_PARAMETER_BYTES} bytes of parameters.",
                    fix="pass large structs through device memory.",
                )
            entries.append(launches.LayoutEntry(offset, size, pointer, read_only))
            entries += [launches.LayoutEntry(offset + at, _ADDRESS_BYTES, True, reads) for at, reads in nested]
            codes.append(f"{gap}x{code or f'{size}s'}" if gap else code or f"{size}s")
            offset += size
        self.block_size = offset
        self.parameters = len(entries)
        packed = launches.pack_layout(entries)
        self.layout = packed.ljust(launches.padded(len(packed)), b"\0")
        exact = launches.pack_layout([entry._replace(read_only=entry.read_only and entry.pointer) for entry in entries])
        self.exact_layout = exact.ljust(len(self.layout), b"\0")
        """The layout for a daemon that does not convert integers."""
        self.pointers = tuple(index for index, parameter in enumerate(parameters) if parameter.pointer)
        self.structs = tuple(index for index, parameter in enumerate(parameters) if parameter.nested)
        """Positions of structs with pointers."""
        self.raw = tuple(
            index for index, parameter in enumerate(parameters) if not (parameter.code or parameter.nested)
        )
        self.handles = sum(entry.pointer for entry in entries)
        """Number of buffers and tensor maps that the record names."""
        tail = struct.Struct(f"<{self.handles}Q{''.join(codes)}{-offset % 8}x")
        self.pack: Callable[..., bytes] = tail.pack
        """Packs (buffer handles..., arguments...) to the part of the record that follows the layout."""
        self.pack_checked = record_packer.packer(
            len(codes), self.pointers, self.structs, self.raw, self.pack, raw_bytes
        )
        self.size = launches.HEADER.size + len(self.layout) + tail.size


_CACHE_LIMIT = 4096
_BY_TYPES: dict[tuple[type, ...], Signature] = {}
_by_parameters = lru_cache(_CACHE_LIMIT)(Signature)


def signature(args: Sequence[Any]) -> Signature:
    """Returns the encoding of `args`. Raises `LaunchTypeError`, which names the argument that cannot be passed."""
    types = tuple(map(type, args))
    result = _BY_TYPES.get(types)
    if result is None:
        result = _by_parameters(tuple(parameter(index, arg) for index, arg in enumerate(args)))
        if fixed(types):
            if len(_BY_TYPES) >= _CACHE_LIMIT:
                _BY_TYPES.clear()
            _BY_TYPES[types] = result
    return result


@lru_cache(_CACHE_LIMIT)
def typed(types: tuple[type, ...], base: Signature) -> record_packer.Packer | None:
    """Makes a variant of `base.pack_checked` that also checks the types of the arguments.

    Args:
        types: Types of the arguments, which must be `fixed`.
        base: Signature of the arguments.

    Returns:
        The packer; None if there are too many arguments.
    """
    if len(types) > record_packer.MAX_UNROLLED:
        return None
    return record_packer.packer(len(types), base.pointers, (), base.raw, base.pack, raw_bytes, types)


def fixed(types: Sequence[type]) -> bool:
    """Returns True if the types alone determine the encoding.

    The encoding of bytes, structs and 0-d arrays depends on the value.
    """
    varying = bytes | ByValue | np.void | np.ndarray if np.is_imported() else bytes | ByValue
    return not any(issubclass(kind, varying) for kind in types)


def parameter(index: int, arg: Any) -> Parameter:
    """Determines the encoding of an argument.

    Args:
        index: Number of the argument, for the error.
        arg: The argument.

    Returns:
        The encoding.

    Raises:
        LaunchTypeError: The argument cannot be passed to a kernel.
    """
    if isinstance(arg, DeviceOperand):
        return Parameter(*arg._passed, True, isinstance(arg, ReadOnly))
    if np.is_imported() and isinstance(arg, np.generic | np.ndarray):
        return _numpy_parameter(index, arg)
    for kind, encoding in _PYTHON:
        if isinstance(arg, kind):
            return encoding
    if isinstance(arg, ByValue):
        return Parameter("", len(arg.data), arg.align, nested=_nested(arg))
    if isinstance(arg, bytes):
        return Parameter("", len(arg), 8)
    extent = None
    if "_ctypes" in sys.modules:
        from hearth.kernels import ctypes_values

        extent = ctypes_values.size_and_alignment(arg)
    if extent is None:
        raise _refused(index, arg)
    return Parameter("", *extent)


def _numpy_parameter(index: int, arg: np.generic | np.ndarray[Any, Any]) -> Parameter:
    """Returns the encoding of a NumPy scalar or an array of one element."""
    passable = arg.size == 1 and arg.dtype.kind not in "OSU" and not (arg.shape and arg.nbytes == _ADDRESS_BYTES)
    if not passable or np.is_masked(arg):
        raise _refused(index, arg)
    encoding = _scalar(arg.dtype)
    if isinstance(arg, np.generic) and not isinstance(arg, np.void):
        return encoding
    nested: tuple[tuple[int, bool], ...] = ()
    if arg.dtype.hasobject:
        from hearth.kernels import pointers

        nested = pointers.struct_of_numpy(f"argument {index}", arg).nested
    return Parameter("", encoding.size, encoding.alignment, nested=nested)


def _nested(arg: ByValue) -> tuple[tuple[int, bool], ...]:
    """Returns the pointers of a struct, as in `Parameter`."""
    if not arg.pointers:
        return ()
    from hearth.kernels import pointers

    return pointers.struct_of_fields(arg.data, arg.pointers).nested


def raw_bytes(arg: Any) -> bytes:
    """Returns the bytes of an argument for which `struct` has no code."""
    if arg is None or isinstance(arg, bytes):
        return _NULL_BYTES if arg is None else arg
    if isinstance(arg, complex):
        return struct.pack("<dd", arg.real, arg.imag)
    if isinstance(arg, ByValue):
        return _with_null_pointers(arg) if arg.pointers else bytes(arg.data)
    if np.is_imported() and isinstance(arg, np.generic | np.ndarray):
        if arg.dtype.hasobject:
            return _with_null_pointers(arg)
        is_scalar = isinstance(arg, np.generic) and not isinstance(arg, np.void)  # in native byte order
        return (arg if is_scalar else arg.astype(arg.dtype.newbyteorder("="), copy=False)).tobytes()
    return bytes(memoryview(arg))  # a value of ctypes


def _with_null_pointers(arg: Any) -> bytes:
    """Returns the bytes of a struct whose pointers are all null: zeros, and not the addresses of Python's objects."""
    from hearth.kernels import pointers

    contents = pointers.struct_of(arg)
    assert contents is not None
    return contents.data


def dimensions(name: str, value: object) -> tuple[int, int, int]:
    """Converts a grid or block to three numbers.

    Args:
        name: ``"grid"``, ``"block"`` or ``"cluster"``, for the error.
        value: An int, or one to three ints.

    Returns:
        Numbers along x, y and z.

    Raises:
        LaunchError: A number is out of range; the error names the axis.
        LaunchTypeError: A number is not a whole number.
    """
    axes = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(axes) <= 3:
        raise LaunchError(
            f"{name} has {len(axes)} axes; it must have one to three.",
            fix=f"pass {name}=(x,), (x, y) or (x, y, z).",
        )
    numbers = [1, 1, 1]
    for index, axis in enumerate(axes):
        if type(axis) is not int and (isinstance(axis, bool | np.bool_) or not isinstance(axis, int | np.integer)):
            raise LaunchTypeError(
                f"{name}.{_AXES[index]} is {axis!r} ({type(axis).__name__}); it must be an integer.",
                fix="use // for the division, or int().",
            )
        if not 1 <= axis <= _DIM_MAX:
            raise LaunchError(
                f"{name}.{_AXES[index]} is {axis}; it must be from 1 to {_DIM_MAX}.",
                fix="skip the launch when there is nothing to do." if axis == 0 else "check how the value is computed.",
            )
        numbers[index] = int(axis)
    return numbers[0], numbers[1], numbers[2]


def _scalar(dtype: np.dtype[Any]) -> Parameter:
    alignment = dtype.alignment
    if dtype.kind in "cW" and dtype.itemsize <= 16:  # W: ml_dtypes' complex of two halves
        alignment = dtype.itemsize  # half2, float2, double2 and every complex class of CUDA are aligned to their size
    return Parameter(_CODES.get((dtype.kind, dtype.itemsize), ""), dtype.itemsize, alignment)


def _refused(index: int, arg: Any) -> LaunchTypeError:
    from hearth.kernels.unpassable import unpassable  # imported here, because few launches are refused

    return unpassable(index, arg)
