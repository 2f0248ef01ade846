"""Copies between arrays of any strides on one device: axes that run backwards, in another order or with gaps.

Both arrays are described by common axes, which are reordered and merged (`common_axes`). At most one axis of runs
without gaps is one copy command of the daemon, such as a copy between two transposed arrays. Everything else is one
launch of a kernel that is compiled once for each element size. Offsets, strides and sizes are in bytes.
"""

from __future__ import annotations

import math
import string
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from hearth import base_stream as streams
from hearth.arrays.read_only import ReadOnly
from hearth.arrays.strided import StridedCopy
from hearth.errors import ArgumentError, UnsupportedError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike, DeviceContext

MAX_AXES = 32
"""Maximum number of axes of the kernel, after axes were merged."""
_BLOCK = 256
_MAX_BLOCKS = 1 << 16
_TYPES = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "hearth_sixteen",
}  # fmt: skip

_SOURCE = string.Template(r"""
struct hearth_axes {
    long long count, axes, to_start, from_start;
    long long length[$max_axes], to[$max_axes], from[$max_axes];
};
struct alignas(16) hearth_sixteen { unsigned long long low, high; };

__device__ inline unsigned long long hearth_quotient(unsigned long long a, unsigned long long b) {
    return (a | b) >> 32 ? a / b : (unsigned int)a / (unsigned int)b;
}

extern "C" __global__ void hearth_strided_copy(char* to, const char* from, hearth_axes layout) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    to += layout.to_start;
    from += layout.from_start;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
         i < (unsigned long long)layout.count; i += step) {
        unsigned long long remaining = i;
        long long t = 0, f = 0;
        for (int axis = (int)layout.axes - 1; axis > 0; --axis) {
            unsigned long long quotient = hearth_quotient(remaining, (unsigned long long)layout.length[axis]);
            long long at = (long long)(remaining - quotient * (unsigned long long)layout.length[axis]);
            t += at * layout.to[axis];
            f += at * layout.from[axis];
            remaining = quotient;
        }
        t += (long long)remaining * layout.to[0];
        f += (long long)remaining * layout.from[0];
        *($type*)(to + t) = *(const $type*)(from + f);
    }
}
""")


def command(stream: int, destination: ArrayLike, source: ArrayLike, region: StridedCopy) -> commands_pb2.Command:
    """Builds the command that copies part of an array to another array on the same device.

    Args:
        stream: Handle of the stream.
        destination: The destination.
        source: The source.
        region: The rows to copy, relative to the starts of the two arrays.

    Returns:
        The command.
    """
    copy_command = commands_pb2.Command(stream=stream)
    copy_command.copy.destination = destination._memory.handle
    copy_command.copy.destination_offset = destination._offset + region.destination_offset
    copy_command.copy.source = source._memory.handle
    copy_command.copy.source_offset = source._offset + region.source_offset
    copy_command.copy.size = region.width
    if region.rows > 1:
        copy_command.copy.rows = region.rows
        copy_command.copy.destination_pitch = region.destination_pitch
        copy_command.copy.source_pitch = region.source_pitch
    return copy_command


class Axis(NamedTuple):
    """An axis that a copy runs along in both arrays."""

    length: int
    destination_stride: int
    """Bytes from one element of the destination to the next; positive after `common_axes`."""
    source_stride: int
    """Bytes from one element of the source to the next."""


class CommonAxes(NamedTuple):
    """The axes of a copy. The last one is the bytes of a run without gaps in both arrays, with strides of 1."""

    destination_offset: int
    """Offset of the first byte in the destination, relative to its first element."""
    source_offset: int
    """Offset of the first byte in the source, relative to its first element."""
    axes: tuple[Axis, ...]

    @property
    def single_copy(self) -> StridedCopy | None:
        """The copy command that has the effect of the axes; None: no single command has."""
        *outer, run = self.axes
        if not outer:
            return StridedCopy(self.destination_offset, self.source_offset, run.length, 1, 0, 0)
        rows = outer[0]
        if len(outer) > 1 or min(rows.destination_stride, rows.source_stride) < run.length:
            return None
        return StridedCopy(
            self.destination_offset,
            self.source_offset,
            run.length,
            rows.length,
            rows.destination_stride,
            rows.source_stride,
        )

    def unit(self, destination_start: int, source_start: int) -> int:
        """Returns the largest number of bytes, a power of two up to 16, that a thread can copy with one access.

        Args:
            destination_start: Offset in bytes of the destination's first element in its buffer.
            source_start: Offset in bytes of the source's first element in its buffer.
        """
        *outer, run = self.axes
        strides = [stride for axis in outer for stride in (axis.destination_stride, axis.source_stride)]
        first_bytes = destination_start + self.destination_offset, source_start + self.source_offset
        return math.gcd(16, run.length, *first_bytes, *strides)


def common_axes(
    shape: Sequence[int], destination_strides: Sequence[int], source_strides: Sequence[int], itemsize: int
) -> CommonAxes:
    """Reorders, reverses and merges the axes of a copy, so that it needs as few axes as possible.

    The order of the elements does not matter: each element of the destination is written once.

    Args:
        shape: Elements along each axis; none is 0.
        destination_strides: Bytes from one element of the destination to the next along each axis; not 0 for axes
            longer than 1.
        source_strides: Bytes from one element of the source to the next along each axis; 0 repeats the element.
        itemsize: Bytes of an element.

    Returns:
        The axes, with the largest strides of the destination first.
    """
    destination_offset = source_offset = 0
    axes: list[Axis] = []
    for axis in map(Axis, shape, destination_strides, source_strides):
        if axis.destination_stride < 0 and axis.length > 1:
            destination_offset += (axis.length - 1) * axis.destination_stride
            source_offset += (axis.length - 1) * axis.source_stride
            axes.append(Axis(axis.length, -axis.destination_stride, -axis.source_stride))
        elif axis.length > 1:
            axes.append(axis)
    axes.sort(key=lambda axis: (axis.destination_stride, abs(axis.source_stride)), reverse=True)
    merged = [Axis(itemsize, 1, 1)]  # innermost first
    for axis in reversed(axes):
        inner = merged[-1]
        destination_end = inner.destination_stride * inner.length
        source_end = inner.source_stride * inner.length
        if axis.destination_stride == destination_end and axis.source_stride == source_end:
            merged[-1] = inner._replace(length=inner.length * axis.length)
        else:
            merged.append(axis)
    return CommonAxes(destination_offset, source_offset, tuple(reversed(merged)))


def copy(destination: ArrayLike, source: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array to another array of the same device. Sent one way: does not block.

    Args:
        destination: The destination, whose elements are apart from those of the source.
        source: The source, of the same shape and dtype; not empty.
        stream: Stream that orders the copy; None: the current one.

    Raises:
        ArgumentError: The destination is read-only.
        UnsupportedError: The copy needs more than `MAX_AXES` axes.
    """
    attachment = destination._usable()
    # refuses a stream that prepares launches
    handle = streams.resolve_captured(stream, destination._connection, attachment)
    axes = common_axes(destination._shape, destination.strides, source.strides, destination.itemsize)
    single_copy = axes.single_copy
    if single_copy is not None:
        attachment.submit(command(handle, destination, source, single_copy))
    else:
        launch(destination, source, axes, stream)


def check_writable(destination: ArrayLike) -> None:
    """Checks that the kernel may write to an array.

    Args:
        destination: The array.

    Raises:
        ArgumentError: The array is attached, or this session has published it.
    """
    # the daemon does not refuse kernels that write to such memory
    if destination._memory.read_only or destination._memory.published:
        raise ArgumentError(
            f"{destination!r} is or was published; a view of it that is not in rows at a constant distance is "
            "read-only.",
            reason="READ_ONLY",
            fix="write to a copy, x.copy(), or to rows of the array.",
        )


def launch(destination: ArrayLike, source: ArrayLike, axes: CommonAxes, stream: BaseStream | None) -> None:
    """Launches the kernel that copies along `axes`.

    Args:
        destination: The destination.
        source: The source.
        axes: The axes of the copy.
        stream: Stream of the launch; None: the current one.

    Raises:
        ArgumentError: The destination is read-only.
        UnsupportedError: There are more than `MAX_AXES` axes.
    """
    check_writable(destination)
    if len(axes.axes) > MAX_AXES:
        raise UnsupportedError(
            f"an array of shape {destination._shape} with strides {destination.strides} cannot be copied on "
            f"the device: its elements are apart along {len(axes.axes) - 1} axes; the maximum is {MAX_AXES - 1}.",
            fix="copy parts of it with fewer axes, e.g. x[i].",
        )
    unit = axes.unit(destination._offset, source._offset)
    *outer, run = axes.axes
    kernel_axes = [*outer, Axis(run.length // unit, unit, unit)]
    if kernel_axes[-1].length == 1 and len(kernel_axes) > 1:
        del kernel_axes[-1]
    count = math.prod(axis.length for axis in kernel_axes)
    argument = _argument(count, axes.destination_offset, axes.source_offset, kernel_axes)
    read = source if source._memory is destination._memory else ReadOnly(source)
    run_kernel(destination._device, _source(unit), "hearth_strided_copy", count, (destination, read, argument), stream)


def _argument(count: int, destination_offset: int, source_offset: int, axes: Sequence[Axis]) -> Any:
    """Returns the kernel's third argument, a structure that is passed by value."""
    structure = _structure()(count, len(axes), destination_offset, source_offset)
    for name, values in zip(("length", "to", "from"), zip(*axes, strict=True), strict=True):
        getattr(structure, name)[: len(axes)] = values
    return structure


@cache
def _structure() -> Any:
    """Returns the class of the structure, made at its first use."""
    import ctypes  # only arrays that are not rows need it

    numbers: Any = ctypes.c_longlong * MAX_AXES
    fields: list[tuple[str, Any]] = [(name, ctypes.c_longlong) for name in ("count", "axes", "to_start", "from_start")]
    fields += [(name, numbers) for name in ("length", "to", "from")]
    return type("_Axes", (ctypes.Structure,), {"_fields_": fields})


@cache
def _source(unit: int) -> str:
    """Returns the source of the kernel whose threads copy `unit` bytes with one access."""
    return _SOURCE.substitute(max_axes=MAX_AXES, type=_TYPES[unit])


def run_kernel(
    device: DeviceContext[Any], source: str, name: str, count: int, args: tuple[Any, ...], stream: BaseStream | None
) -> None:
    """Launches one of the client's own kernels, which loops over `count` elements with the stride of its grid.

    The kernel is compiled at its first launch on the device.

    Args:
        device: The device.
        source: CUDA C++ source.
        name: Name of the kernel.
        count: Number of elements.
        args: Arguments of the kernel.
        stream: Stream of the launch; None: the current one.
    """
    kernels: dict[str, Callable[..., None]] = device.__dict__.setdefault("_own_kernels", {})
    kernel = kernels.get(source)
    if kernel is None:
        kernel = kernels[source] = device.RawKernel(source, name)
    blocks = min(-(-count // _BLOCK), _MAX_BLOCKS)
    kernel((blocks,), (_BLOCK,), args, stream=stream)
