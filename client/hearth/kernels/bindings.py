"""Arguments of a dispatch, and the messages in which they are sent.

========================== ============================ ===========================================================
argument                   the kernel gets              the array
========================== ============================ ===========================================================
`In(a)`, a NumPy array     a pointer                    is uploaded
`Out(shape, dtype)`        a pointer to zeros           is downloaded
`InOut(a)`                 a pointer                    is uploaded, and downloaded as a new array
`DeviceArray`              a pointer                    stays on the device; ordered like any other use of it
anything else              a value                      as for a launch, see `hearth.kernels.arguments`
========================== ============================ ===========================================================
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hearth import shapes
from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, DtypeError, LaunchTypeError
from hearth.kernels import arguments, pointers, unpassable
from hearth.kernels.dispatch_transfers import Output
from hearth.kernels.pointer_types import HostOperand
from hearth.session.memory import DeviceOperand
from hearth.transfer import plan
from hearth_proto.launches import TENSOR_MAP_BYTES
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.kernels.base_function import BaseFunction
    from hearth.session.attachment import Attachment
    from hearth.session.send_queue import Limits

Array = np.ndarray[Any, Any]
Binding = commands_pb2.Binding

_RETURNED = (Binding.ROLE_OUTPUT, Binding.ROLE_INPUT_OUTPUT)
_MARGIN = 512
"""Bytes reserved in a batch for the rest of the command."""
_MARGIN_OF_BINDING = 64


class _HostArray(HostOperand):
    """A host array that is uploaded for the kernel."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = _host(array)

    @property
    def _dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def _shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.array.shape
        return shape


class In(_HostArray):
    """An input of a dispatch.

    Args:
        array: Any array or nested sequence of numbers; copied if it is not contiguous.

    Raises:
        DtypeError: `array` cannot be converted to an array of elements that a device has.
        LaunchTypeError: `array` is already on the device.
    """

    __slots__ = ()


class Out(HostOperand):
    """An output of a dispatch; elements that the kernel does not write are zero.

    Args:
        shape: Elements along each axis: an int or a sequence.
        dtype: Type of the elements.
        range: Slice of step 1 along the first axis that is downloaded; None: all.

    Raises:
        ArgumentError: The shape has a negative axis, or `range` is no slice of integers within it.
        DtypeError: The shape does not consist of integers, or no device has elements of that type.
    """

    __slots__ = ("dtype", "range", "shape")

    def __init__(self, shape: shapes.Shape, dtype: Any, *, range: slice | None = None) -> None:
        self.shape = shapes.shape_of(shape)
        self.dtype = shapes.dtype_of(dtype)
        self.range = _rows(range, self.shape)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self.dtype

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.shape


class InOut(_HostArray):
    """An array that the kernel changes: a copy is uploaded, and downloaded as an output.

    Args:
        array: Any array or nested sequence of numbers.
        range: Slice of step 1 along the first axis that is downloaded; None: all.

    Raises:
        ArgumentError: `range` is no slice of integers within the array.
        DtypeError: `array` cannot be converted to an array of elements that a device has.
        LaunchTypeError: `array` is already on the device.
    """

    __slots__ = ("range",)

    def __init__(self, array: Any, *, range: slice | None = None) -> None:
        super().__init__(array)
        self.range = _rows(range, self._shape)


def in_order(args: Sequence[Any] | None, ins: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
    """Returns the kernel's arguments in order, with host arrays wrapped in `In`.

    Args:
        args: The arguments in order; None: the other three, one after the other.
        ins: Inputs.
        outs: Outputs, each ``(shape, dtype)``, `Out`, `InOut` or a device array.
        scalars: Values.

    Returns:
        The arguments.

    Raises:
        LaunchTypeError: One of the four is no list or tuple, or an output is malformed.
        ArgumentError: `args` is given together with one of the others.
    """
    for name, value in (("args", args), ("ins", ins), ("outs", outs), ("scalars", scalars)):
        if value is not None and not isinstance(value, tuple | list):
            raise LaunchTypeError(
                f"{name} is a {type(value).__name__}; it must be a list.",
                fix=f"pass {name}=[...].",
            )
    if args is not None and (ins or outs or scalars):
        raise ArgumentError(
            "args contains all arguments, so it cannot be combined with ins, outs and scalars.",
            fix="pass either args=[In(a), Out(shape, dtype), ...], or ins=, outs= and scalars=.",
        )
    if args is not None:
        return [In(arg) if isinstance(arg, np.ndarray) and arg.ndim else arg for arg in args]
    ordered: list[Any] = [value if isinstance(value, In | InOut | DeviceOperand) else In(value) for value in ins]
    for index, value in enumerate(outs):
        if isinstance(value, Out | InOut | DeviceOperand):
            ordered.append(value)
        elif isinstance(value, tuple | list) and len(value) == 2:
            ordered.append(Out(*value))
        else:
            raise LaunchTypeError(
                f"outs[{index}] is {value!r}; an output requires a shape and a dtype.",
                fix="use outs=[((rows, columns), np.float32)], or hearth.Out(shape, dtype).",
            )
    return [*ordered, *scalars]


def binding_of(index: int, argument: Any, function: BaseFunction, attachment: Attachment) -> Binding:
    """Builds the message of one argument; `send_inputs` adds the bytes of inputs later.

    Args:
        index: Number of the argument, for errors.
        argument: The argument.
        function: The kernel.
        attachment: The attachment to use.

    Returns:
        The message.

    Raises:
        LaunchError: The argument cannot be used on this attachment, or a number is out of range.
        LaunchTypeError: The argument cannot be passed to a kernel.
    """
    if isinstance(argument, In):
        return Binding(role=Binding.ROLE_INPUT, size=argument.array.nbytes)
    if isinstance(argument, Out | InOut):
        size = shapes.bytes_of(argument._shape, argument._dtype)
        role = Binding.ROLE_OUTPUT if isinstance(argument, Out) else Binding.ROLE_INPUT_OUTPUT
        binding = Binding(role=role, size=size)
        if argument.range is not None:
            row = size // argument._shape[0] if argument._shape[0] else 0
            start, stop = argument.range
            binding.range_offset = start * row
            binding.range_size = (stop - start) * row
        return binding
    encoding = arguments.parameter(index, argument)
    value = commands_pb2.Argument()
    if encoding.pointer:
        memory = argument._memory
        if memory.owner is not attachment.space:
            function._check_operand(f"argument {index}", argument, attachment.space, index)
        if encoding.size == TENSOR_MAP_BYTES:
            value.tensor_map = memory.handle
        else:
            value.pointer.buffer = memory.handle
            value.pointer.offset = argument._offset
            value.pointer.read_only = encoding.read_only
    elif encoding.read_only and -(2**63) <= argument < 2**63:
        value.int64 = argument  # the daemon converts it to the parameter's type
    elif encoding.nested:
        _fill_structure(value.structure, index, argument, function, attachment)
    else:
        value.raw = _value_bytes(index, argument, encoding)
    return Binding(role=Binding.ROLE_VALUE, value=value)


def _fill_structure(
    message: commands_pb2.Argument.Structure, index: int, argument: Any, function: BaseFunction, attachment: Attachment
) -> None:
    """Fills in the message of a struct with pointers. Raises the errors of `binding_of`."""
    pointers.check_supported(function._connection.limits.struct_pointers)
    contents = pointers.struct_of(argument)
    assert contents is not None
    message.data = contents.data
    for at, operand in contents.pointers:
        if operand._memory.owner is not attachment.space:
            subject = f"the pointer at byte {at} of argument {index}"
            function._check_operand(subject, operand, attachment.space, index)
        field = message.pointers.add(at=at)
        field.pointer.buffer = operand._memory.handle
        field.pointer.offset = operand._offset
        field.pointer.read_only = isinstance(operand, ReadOnly)


def _value_bytes(index: int, argument: Any, encoding: arguments.Parameter) -> bytes:
    if not encoding.code:
        return arguments.raw_bytes(argument)
    try:
        return struct.pack(f"<{encoding.code}", argument)
    except struct.error:
        raise unpassable.too_large(index, argument) from None


def output_destinations(args: Sequence[Any], out: Sequence[Array | None] | None) -> list[Output]:
    """Determines the destination of each output, before any command is sent.

    Args:
        args: The kernel's arguments in order.
        out: For each output an array to fill, or None for a new one; None: new ones.

    Returns:
        The destinations, in the order of the outputs.

    Raises:
        ArgumentError: `out` does not match the outputs.
    """
    expected: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
    for argument in args:
        if isinstance(argument, Out | InOut):
            shape = argument._shape
            if argument.range is not None:
                shape = (argument.range[1] - argument.range[0], *shape[1:])
            expected.append((shape, argument._dtype))
    if out is not None and (not isinstance(out, tuple | list) or len(out) != len(expected)):
        count = f"has {len(out)} entries" if isinstance(out, tuple | list) else f"is a {type(out).__name__}"
        raise ArgumentError(
            f"out {count}; the dispatch has {len(expected)} outputs.",
            fix="pass out=[array or None for each output].",
        )
    destinations = []
    for index, (shape, dtype) in enumerate(expected):
        host = None if out is None else out[index]
        if host is None:
            host = np.empty(shape, dtype)
        elif not isinstance(host, np.ndarray) or host.shape != shape or host.dtype.newbyteorder("=") != dtype:
            description = f"{host.dtype} {host.shape}" if isinstance(host, np.ndarray) else type(host).__name__
            raise ArgumentError(
                f"out[{index}] is {description}; output {index} is {dtype} {shape}.",
                fix=f"pass np.empty({shape}, {str(dtype)!r}).",
            )
        elif not host.flags.writeable:
            raise ArgumentError(f"out[{index}] is read-only.", fix="pass a writable array.")
        direct = host.flags.c_contiguous and host.dtype.isnative
        destinations.append(Output(host, host if direct else np.empty(shape, dtype)))
    return destinations


def send_inputs(
    args: Sequence[Any],
    dispatch: commands_pb2.Dispatch,
    limits: Limits,
    mint: Callable[[], int],
) -> list[tuple[int, memoryview]]:
    """Puts the small inputs into the command, and assigns uploads to the others.

    Args:
        args: The kernel's arguments in order.
        dispatch: The command, which is completed.
        limits: Limits of the session.
        mint: Makes numbers for transfers.

    Returns:
        The uploads, each with its transfer and its bytes.
    """
    room = limits.max_batch_bytes - _MARGIN - _MARGIN_OF_BINDING * len(dispatch.bindings)
    room = min(limits.max_inline_bytes, room)
    arrays = [(index, argument.array) for index, argument in enumerate(args) if isinstance(argument, _HostArray)]
    uploads = []
    for (index, array), fits in zip(arrays, _fitting([array.nbytes for _, array in arrays], room), strict=True):
        binding = dispatch.bindings[index]
        if fits:
            binding.data = array.tobytes()
        else:
            binding.upload = mint()
            uploads.append((binding.upload, plan.host_bytes(array)))
    return uploads


def return_outputs(
    dispatch: commands_pb2.Dispatch, destinations: Sequence[Output], limits: Limits, mint: Callable[[], int]
) -> None:
    """Assigns downloads to the outputs that are too large for the answer.

    Args:
        dispatch: The command, which is completed.
        destinations: The destinations of the outputs, which are completed.
        limits: Limits of the session.
        mint: Makes numbers for transfers.
    """
    outputs = [binding for binding in dispatch.bindings if binding.role in _RETURNED]
    fitting = _fitting([len(destination.into) for destination in destinations], limits.max_inline_bytes)
    for binding, destination, fits in zip(outputs, destinations, fitting, strict=True):
        if not fits:
            binding.download = destination.download = mint()


def _fitting(sizes: Sequence[int], room: int) -> list[bool]:
    """Returns True for each part that is sent inline: as many as fit into `room`, the smallest first."""
    fits = [False] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if sizes[index] > room:
            break
        room -= sizes[index]
        fits[index] = True
    return fits


def _host(array: Any) -> Array:
    """Returns a C-contiguous array in native byte order.

    Raises `DtypeError` for objects that device memory cannot hold.
    """
    if isinstance(array, DeviceOperand):
        raise LaunchTypeError(f"{array!r} is already on the device.", fix="pass it directly, without In.")
    try:
        host = np.asarray(array)
    except (TypeError, ValueError) as error:
        raise DtypeError(
            f"this {type(array).__name__} cannot be converted to an array ({error}).",
            fix="pass an object that np.asarray accepts.",
        ) from None
    return np.asarray(host, shapes.dtype_of(host.dtype), order="C")


def _rows(range: slice | None, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns start and stop along the first axis.

    Raises `ArgumentError` for a range outside of the axis, instead of clipping it, and for bounds that are no integers.
    """
    if range is None:
        return None
    try:
        first, last, step = (
            None if part is None else operator.index(part) for part in (range.start, range.stop, range.step)
        )
    except (AttributeError, TypeError):  # no slice, or a bound that is no integer
        step = 0
    if not isinstance(range, slice) or step not in (None, 1) or not shape:
        raise ArgumentError(
            f"range is {range!r} for an output of shape {shape}; it must be a slice of the first axis, of integers and "
            "with step 1.",
            fix="use range=slice(start, stop).",
        )
    length = shape[0]
    start = 0 if first is None else first + length * (first < 0)
    stop = length if last is None else last + length * (last < 0)
    if not 0 <= start <= stop <= length:
        raise ArgumentError(
            f"range [{range.start}:{range.stop}] is outside an output of length {length} along its first axis.",
            reason="OUT_OF_BOUNDS",
            fix="use a range with 0 <= start <= stop <= length.",
        )
    return start, stop
