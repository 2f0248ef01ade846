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

MOST_AXES = 32
"""Maximum number of axes of the kernel, after axes were merged."""
_BLOCK = 256
_MOST_BLOCKS = 1 << 16
_TYPES = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "hearth_sixteen",
}  # fmt: skip

_SOURCE = string.Template(r"""
struct hearth_axes {
    long long count, axes, to_start, from_start;
    long long length[$most], to[$most], from[$most];
};
struct alignas(16) hearth_sixteen { unsigned long long low, high; };

__device__ inline unsigned long long hearth_quotient(unsigned long long a, unsigned long long b) {
    return (a | b) >> 32 ? a / b : (unsigned int)a / (unsigned int)b;
}

extern "C" __global__ void hearth_strided_copy(char* to, const char* from, hearth_axes each) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    to += each.to_start;
    from += each.from_start;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
         i < (unsigned long long)each.count; i += step) {
        unsigned long long left = i;
        long long t = 0, f = 0;
        for (int axis = (int)each.axes - 1; axis > 0; --axis) {
            unsigned long long quotient = hearth_quotient(left, (unsigned long long)each.length[axis]);
            long long at = (long long)(left - quotient * (unsigned long long)each.length[axis]);
            t += at * each.to[axis];
            f += at * each.from[axis];
            left = quotient;
        }
        t += (long long)left * each.to[0];
        f += (long long)left * each.from[0];
        *($type*)(to + t) = *(const $type*)(from + f);
    }
}
""")


def command(stream: int, to: ArrayLike, since: ArrayLike, move: StridedCopy) -> commands_pb2.Command:
    """Builds the command that copies part of an array to another array on the same device.

    Args:
        stream: Handle of the stream.
        to: The destination.
        since: The source.
        move: The rows to copy, relative to the starts of the two arrays.

    Returns:
        The command.
    """
    made = commands_pb2.Command(stream=stream)
    made.copy.destination = to._memory.handle
    made.copy.destination_offset = to._offset + move.to
    made.copy.source = since._memory.handle
    made.copy.source_offset = since._offset + move.since
    made.copy.size = move.width
    if move.rows > 1:
        made.copy.rows = move.rows
        made.copy.destination_pitch = move.to_pitch
        made.copy.source_pitch = move.since_pitch
    return made


class Axis(NamedTuple):
    """An axis that a copy runs along in both arrays."""

    length: int
    to: int
    """Bytes from one element of the destination to the next; positive after `common_axes`."""
    since: int
    """Bytes from one element of the source to the next."""


class CommonAxes(NamedTuple):
    """The axes of a copy. The last one is the bytes of a run without gaps in both arrays, with strides of 1."""

    to: int
    """Offset of the first byte in the destination, relative to its first element."""
    since: int
    """Offset of the first byte in the source, relative to its first element."""
    axes: tuple[Axis, ...]

    @property
    def move(self) -> StridedCopy | None:
        """The copy command that has the effect of the axes; None: no single command has."""
        *outer, run = self.axes
        if not outer:
            return StridedCopy(self.to, self.since, run.length, 1, 0, 0)
        if len(outer) > 1 or min(outer[0].to, outer[0].since) < run.length:
            return None
        return StridedCopy(self.to, self.since, run.length, outer[0].length, outer[0].to, outer[0].since)

    def unit(self, to: int, since: int) -> int:
        """Returns the largest number of bytes, a power of two up to 16, that a thread can copy at once.

        Args:
            to: Offset in bytes of the destination's first element in its buffer.
            since: Offset in bytes of the source's first element in its buffer.
        """
        *outer, run = self.axes
        steps = [step for axis in outer for step in (axis.to, axis.since)]
        return math.gcd(16, run.length, to + self.to, since + self.since, *steps)


def common_axes(shape: Sequence[int], to: Sequence[int], since: Sequence[int], itemsize: int) -> CommonAxes:
    """Reorders, turns and merges the axes of a copy, so that it needs as few axes as possible.

    The order of the elements does not matter: each element of the destination is written once.

    Args:
        shape: Elements along each axis; none is 0.
        to: Bytes from one element of the destination to the next along each axis; not 0 for axes longer than 1.
        since: Bytes from one element of the source to the next along each axis; 0 repeats the element.
        itemsize: Bytes of an element.

    Returns:
        The axes, with the largest strides of the destination first.
    """
    to_start = since_start = 0
    axes: list[Axis] = []
    for axis in map(Axis, shape, to, since):
        if axis.to < 0 and axis.length > 1:
            to_start += (axis.length - 1) * axis.to
            since_start += (axis.length - 1) * axis.since
            axes.append(Axis(axis.length, -axis.to, -axis.since))
        elif axis.length > 1:
            axes.append(axis)
    axes.sort(key=lambda axis: (axis.to, abs(axis.since)), reverse=True)
    merged = [Axis(itemsize, 1, 1)]  # innermost first
    for axis in reversed(axes):
        inner = merged[-1]
        if axis.to == inner.to * inner.length and axis.since == inner.since * inner.length:
            merged[-1] = inner._replace(length=inner.length * axis.length)
        else:
            merged.append(axis)
    return CommonAxes(to_start, since_start, tuple(reversed(merged)))


def copy(to: ArrayLike, since: ArrayLike, stream: BaseStream | None) -> None:
    """Copies an array to another array of the same device. Sent one way: does not block.

    Args:
        to: The destination, whose elements are apart from those of the source.
        since: The source, of the same shape and dtype; not empty.
        stream: Stream that orders the copy; None: the current one.

    Raises:
        ArgumentError: The destination is read-only.
        UnsupportedError: The copy needs more than `MOST_AXES` axes.
    """
    attachment = to._usable()
    handle = streams.resolve_captured(stream, to._connection, attachment)  # refuses a stream that prepares launches
    axes = common_axes(to._shape, to.strides, since.strides, to.itemsize)
    move = axes.move
    if move is not None:
        attachment.submit(command(handle, to, since, move))
    else:
        launch(to, since, axes, stream)


def check_writable(to: ArrayLike) -> None:
    """Checks that the kernel may write to an array.

    Args:
        to: The array.

    Raises:
        ArgumentError: The array is attached, or this session has published it.
    """
    if to._memory.read_only or to._memory.published:  # the daemon does not refuse kernels that write to such memory
        raise ArgumentError(
            f"{to!r} is or was published; a view of it that is not in rows at a constant distance is read-only.",
            reason="READ_ONLY",
            fix="write to a copy, x.copy(), or to rows of the array.",
        )


def launch(to: ArrayLike, since: ArrayLike, axes: CommonAxes, stream: BaseStream | None) -> None:
    """Launches the kernel that copies along `axes`.

    Args:
        to: The destination.
        since: The source.
        axes: The axes of the copy.
        stream: Stream of the launch; None: the current one.

    Raises:
        ArgumentError: The destination is read-only.
        UnsupportedError: There are more than `MOST_AXES` axes.
    """
    check_writable(to)
    if len(axes.axes) > MOST_AXES:
        raise UnsupportedError(
            f"an array of shape {to._shape} with strides {to.strides} cannot be copied on the device: its elements "
            f"are apart along {len(axes.axes) - 1} axes; the maximum is {MOST_AXES - 1}.",
            reason="UNSUPPORTED",
            fix="copy parts of it with fewer axes, e.g. x[i].",
        )
    unit = axes.unit(to._offset, since._offset)
    *outer, run = axes.axes
    each = [*outer, Axis(run.length // unit, unit, unit)]
    if each[-1].length == 1 and len(each) > 1:
        del each[-1]
    count = math.prod(axis.length for axis in each)
    argument = _argument(count, axes.to, axes.since, each)
    read = since if since._memory is to._memory else ReadOnly(since)
    run_kernel(to._device, _source(unit), "hearth_strided_copy", count, (to, read, argument), stream)


def _argument(count: int, to: int, since: int, axes: Sequence[Axis]) -> Any:
    """Returns the kernel's third argument, a structure that is passed by value."""
    made = _structure()(count, len(axes), to, since)
    for name, values in zip(("length", "to", "from"), zip(*axes, strict=True), strict=True):
        getattr(made, name)[: len(axes)] = values
    return made


@cache
def _structure() -> Any:
    """Returns the class of the structure, made at its first use."""
    import ctypes  # only arrays that are not rows need it

    numbers: Any = ctypes.c_longlong * MOST_AXES
    fields: list[tuple[str, Any]] = [(name, ctypes.c_longlong) for name in ("count", "axes", "to_start", "from_start")]
    fields += [(name, numbers) for name in ("length", "to", "from")]
    return type("_Axes", (ctypes.Structure,), {"_fields_": fields})


@cache
def _source(unit: int) -> str:
    """Returns the source of the kernel that copies `unit` bytes at once."""
    return _SOURCE.substitute(most=MOST_AXES, type=_TYPES[unit])


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
    blocks = min(-(-count // _BLOCK), _MOST_BLOCKS)
    kernel((blocks,), (_BLOCK,), args, stream=stream)
