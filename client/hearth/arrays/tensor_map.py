"""Tensor maps: descriptors of arrays for the tensor memory accelerator (TMA).

NVIDIA GPUs have TMA from compute capability 9.0. A kernel declares such an argument as ``const __grid_constant__
CUtensorMap map``. Here, shapes, boxes and strides are in NumPy's order, with the innermost axis last; in the kernel,
the coordinates of a copy are given innermost first, as always with TMA.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict

import numpy as np

from hearth import base_stream as streams
from hearth.arrays.read_only import ReadOnlyMap
from hearth.errors import ArgumentError, DtypeError
from hearth.session.memory import DeviceOperand, Memory, Space
from hearth_proto import layouts
from hearth_proto.launches import TENSOR_MAP_BYTES
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike

    A = TypeVar("A", bound=ArrayLike, default=Any)
    """The class of the array."""
else:
    from typing import TypeVar

    A = TypeVar("A")  # without a default before Python 3.13

_PER_BYTE = {"16u4_align8b": 2}
"""Number of elements in one byte of the array, for packed types."""

_U32, _U64, _I32 = (0, 2**32 - 1), (0, 2**64 - 1), (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Im2col:
    """Reads of a convolution (im2col mode) from a tensor of (N, W, C), (N, H, W, C) or (N, D, H, W, C).

    The corners limit the pixels along each axis between N and C: `lower_corner` is the offset of the first pixel from
    the tensor's first pixel, `upper_corner` that of the last pixel from the tensor's last. One copy reads
    ``channels_per_pixel`` elements of each of ``pixels_per_column`` pixels.
    """

    lower_corner: Sequence[int]
    upper_corner: Sequence[int]
    channels_per_pixel: int
    pixels_per_column: int


@dataclass(frozen=True)
class Im2colWide:
    """Reads of a convolution along W only (im2col-wide mode).

    The tensor is one of (N, W, C), (N, H, W, C) or (N, D, H, W, C). The corners are the offsets along W of the first
    pixel from the tensor's first, and of the last from its last; H and D stay as the coordinates of the copy give them.
    Mode ``"w"`` reads `channels_per_pixel` elements of `pixels_per_column` pixels at a time, and mode ``"w128"`` of 128
    pixels, without `pixels_per_column`. Needs the feature ``"tensor_map_im2col_wide"`` (compute capability 10.0), and
    swizzle ``"64b"``, ``"128b"`` or ``"128b_atom_32b"``.
    """

    lower_corner_width: int
    upper_corner_width: int
    channels_per_pixel: int
    pixels_per_column: int | None = None
    mode: str = "w"


class Options(TypedDict, total=False):
    """Keywords of `TensorMap`, for functions that pass them on."""

    shape: Sequence[int] | None
    strides: Sequence[int] | None
    element_strides: Sequence[int] | None
    dtype: Any
    interleave: str
    swizzle: str
    l2_promotion: str
    oob_fill: str
    stream: BaseStream | None


class _Handle(Memory):
    """The handle of a tensor map, which keeps the array's memory.

    The map is destroyed when nothing refers to the handle any more.
    """

    __slots__ = ()

    def free(self) -> None:
        if self.owner is not None:
            self.owner = None
            if not self.space.lost:
                self.space.deferred_frees.add("tensor_map", self.handle)


class TensorMap(DeviceOperand, Generic[A]):
    """A descriptor of an array for TMA, passed to kernels as an argument.

    Keeps the array's memory, even after the array has been freed.

    In the kernel, a copy must start at a multiple of 16 bytes along the innermost axis: otherwise an H200 ends the
    kernel with an illegal instruction (measured). A map that violates the device's rules is reported by the next sync,
    read or flush of the stream (`LaunchError`, reason ``TENSOR_MAP_INVALID``, with everything that is wrong), and so is
    a device without TMA, or without the feature that the map needs (`UnsupportedError`).

    Args:
        array: The array.
        box: Elements of one copy along each axis, innermost last.
        im2col: Pixels of a convolution to copy, instead of `box`: `Im2col` or `Im2colWide`.
        shape: Elements along each axis of another region of the array's memory, which starts at its first element;
            None: the array's.
        strides: Bytes from one element to the next along each axis of that region; None: those of C order, or without
            `shape` the array's.
        element_strides: Copies every n-th element along each axis; None: every element.
        dtype: Type of the elements, of the same size: an integer or float of 1 to 8 bytes (including those of
            ml_dtypes), or ``"float32_ftz"``, ``"tfloat32"``, ``"tfloat32_ftz"``, ``"16u4_align8b"``; None: the array's.
        interleave: ``"none"``, ``"16b"`` or ``"32b"``.
        swizzle: ``"none"``, ``"32b"``, ``"64b"`` or ``"128b"``; with the feature ``"tensor_map_swizzle_atoms"``
            (compute capability 10.0) also ``"128b_atom_32b"``, ``"128b_atom_32b_flip_8b"`` or ``"128b_atom_64b"``.
        l2_promotion: ``"none"``, ``"l2_64b"``, ``"l2_128b"`` or ``"l2_256b"``.
        oob_fill: Value of elements outside the tensor: ``"none"`` (zeros) or ``"nan"``.
        stream: Stream that orders the creation; None: the current one.

    Raises:
        ArgumentError: Both or neither of `box` and `im2col` are given, or a number of an option is out of range.
        DtypeError: The elements of `dtype` have another size than those of the array, or a number is not a whole
            number.
    """

    __slots__ = ("__weakref__", "_array", "_connection")

    _passed: ClassVar[tuple[str, int, int]] = ReadOnlyMap._passed

    def __init__(
        self,
        array: A,
        box: Sequence[int] | None = None,
        *,
        im2col: Im2col | Im2colWide | None = None,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        element_strides: Sequence[int] | None = None,
        dtype: Any = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "none",
        stream: BaseStream | None = None,
    ) -> None:
        if (box is None) == (im2col is None):
            raise ArgumentError(
                "a tensor map takes either a box or im2col, not both.",
                fix="pass only one, e.g. x.tensor_map((64, 32)), which copies 64 rows of 32 elements at a time.",
            )
        command = commands_pb2.Command()
        message = command.create_tensor_map
        message.buffer = array._memory.handle
        message.offset = array._offset
        message.dtype, sizes, steps = _region(array, shape, strides, dtype)
        message.shape.extend(reversed(sizes))
        message.strides.extend(reversed(steps[:-1]))
        if element_strides is not None:
            message.element_strides.extend(reversed(_numbers("element_strides", element_strides, _U32)))
        message.interleave, message.swizzle = interleave, swizzle
        message.l2_promotion, message.oob_fill = l2_promotion, oob_fill
        if box is not None:
            message.tile.box.extend(reversed(_numbers("box", box, _U32)))
        if isinstance(im2col, Im2colWide):
            _fill_im2col_wide(message.im2col_wide, im2col)
        elif im2col is not None:
            _fill_im2col(message.im2col, im2col)
        attachment = array._usable()
        handle = array._connection.mint()
        message.tensor_map = handle
        command.stream = streams.resolve(stream, array._connection, attachment, work=False)
        attachment.submit(command)
        space: Space = array._memory.space
        self._array = array
        self._connection = array._connection
        self._memory = _Handle(space, handle, TENSOR_MAP_BYTES, keep=array._memory)
        self._offset = 0

    @property
    def array(self) -> A:
        """The device array from which the map was made."""
        return self._array

    def free(self) -> None:
        """Destroys the map now, instead of when nothing refers to it any more. Using the map afterwards is an error."""
        self._memory.free()

    def __repr__(self) -> str:
        freed = ", freed" if self._memory.owner is None else ""
        return f"TensorMap({self._array!r}{freed})"


def _region(
    array: ArrayLike, shape: Sequence[int] | None, strides: Sequence[int] | None, dtype: Any
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Returns the type's name, the size of each axis in elements and the strides in bytes, in NumPy's order.

    The name is the driver's or NumPy's.
    """
    name = array.dtype.name if dtype is None else dtype if isinstance(dtype, str) else np.dtype(dtype).name
    size = array.itemsize
    if _size_of(name, size) != size:
        raise DtypeError(
            f"the array is of {array.dtype}, whose elements have another size than {name}.",
            fix=f"reinterpret it first: x.view({'np.uint8' if name in _PER_BYTE else repr(name)}).tensor_map(...).",
        )
    packed = _PER_BYTE.get(name, 1)
    if shape is None:
        sizes, steps = (*array.shape[:-1], *(axis * packed for axis in array.shape[-1:])), array.strides
    else:
        sizes = _numbers("shape", shape, _U64)
        steps = layouts.strides_of((*sizes[:-1], *(-(-axis // packed) for axis in sizes[-1:])), size)
    if strides is not None:
        steps = _numbers("strides", strides, _U64)
    if len(steps) != len(sizes):
        raise ArgumentError(
            f"shape {sizes} and strides {steps} have different lengths.",
            fix="give one stride, in bytes, for each axis.",
        )
    if steps and steps[-1] != size:
        raise ArgumentError(
            f"the innermost stride is {steps[-1]} bytes, and an element has {size} bytes; TMA requires a "
            "last axis without gaps.",
            fix="move an axis without gaps to the last position.",
        )
    if any(stride < 0 for stride in steps):
        raise ArgumentError(
            f"the strides {steps} of the array contain a negative one, which TMA does not have.",
            fix="use the array without a negative step, or x.copy().",
        )
    return name, sizes, steps


def _size_of(name: str, otherwise: int) -> int:
    """Returns the bytes of an element of a type; `otherwise` for an unknown type.

    Packed types have 1, because their arrays have elements of one byte.
    """
    if name in _PER_BYTE:
        return 1
    if name in ("float32_ftz", "tfloat32", "tfloat32_ftz"):
        return 4
    try:
        return np.dtype(name).itemsize
    except TypeError:  # unknown here: the daemon accepts or refuses the type
        return otherwise


def _fill_im2col(message: commands_pb2.CreateTensorMap.Im2col, im2col: Im2col) -> None:
    message.lower_corner.extend(reversed(_numbers("lower_corner", im2col.lower_corner, _I32)))
    message.upper_corner.extend(reversed(_numbers("upper_corner", im2col.upper_corner, _I32)))
    (message.channels_per_pixel,) = _numbers("channels_per_pixel", (im2col.channels_per_pixel,), _U32)
    (message.pixels_per_column,) = _numbers("pixels_per_column", (im2col.pixels_per_column,), _U32)


def _fill_im2col_wide(message: commands_pb2.CreateTensorMap.Im2colWide, im2col: Im2colWide) -> None:
    (message.lower_corner_width,) = _numbers("lower_corner_width", (im2col.lower_corner_width,), _I32)
    (message.upper_corner_width,) = _numbers("upper_corner_width", (im2col.upper_corner_width,), _I32)
    (message.channels_per_pixel,) = _numbers("channels_per_pixel", (im2col.channels_per_pixel,), _U32)
    if im2col.pixels_per_column is not None:
        (message.pixels_per_column,) = _numbers("pixels_per_column", (im2col.pixels_per_column,), _U32)
    message.mode = im2col.mode


def _numbers(name: str, values: Sequence[int], allowed: tuple[int, int]) -> tuple[int, ...]:
    """Returns `values` as whole numbers within the range `allowed`. Raises `ArgumentError` or `DtypeError`."""
    low, high = allowed
    try:
        numbers = tuple(operator.index(value) for value in values)
    except TypeError:
        raise DtypeError(
            f"{name} is {values!r}; it must be a sequence of integers.",
            fix="use int(...) or //, and pass a tuple even for one axis.",
        ) from None
    for number in numbers:
        if not low <= number <= high:
            raise ArgumentError(
                f"{name} contains {number}; its values must be from {low} to {high}.",
                fix="check how the value is computed.",
            )
    return numbers
