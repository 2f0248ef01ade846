"""Operands of copies and fills in graphs, as one command of the daemon each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hearth.arrays import device_copy, device_fill, strided, strided_copy
from hearth.codec import encode
from hearth.errors import ArgumentError, LaunchError
from hearth.session.memory import DeviceOperand
from hearth_proto.layouts import StrideLayout
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.interfaces import ArrayLike
    from hearth.session.connection import Connection

_FORMS = {"copy": "(destination, source)", "fill": "(array, value)"}


def command(kind: str, args: Sequence[Any], connection: Connection) -> commands_pb2.Command:
    """Builds the command that does the work of a node, on the default stream.

    Args:
        kind: ``"copy"`` or ``"fill"``.
        args: Destination and source, or array and value.
        connection: The connection to the device of the graph.

    Returns:
        A `Command` with the copy or the fill.

    Raises:
        LaunchError: `args` has not two elements, or is not of arrays.
        ArgumentError: The arrays do not fit, or the work would need more than one copy or fill.
        DtypeError: The value cannot be converted to the array's dtype.
    """
    arrays = args if kind == "copy" else args[:1]
    if len(args) != 2 or not all(isinstance(each, DeviceOperand) for each in arrays):
        raise LaunchError(
            f"the arguments of a {kind} in a graph are {_FORMS[kind]}, with device arrays.",
            reason="INVALID_ARGUMENT",
            fix=f"call node.set_args({_FORMS[kind]}).",
        )
    for array in arrays:
        array._usable()
        if array._connection is not connection:
            raise ArgumentError(
                f"{array!r} belongs to another device or session.",
                reason="INVALID_ARGUMENT",
                fix="pass arrays of the device of the graph.",
            )
    to = args[0]
    if not to.nbytes:
        raise ArgumentError(
            f"{to!r} has no bytes, and a node of a graph has.", reason="INVALID_ARGUMENT", fix="record the graph again."
        )
    return _copy(to, args[1]) if kind == "copy" else _fill(to, args[1])


def _copy(to: ArrayLike, since: ArrayLike) -> commands_pb2.Command:
    if since._shape != to._shape or since.dtype != to.dtype:
        raise ArgumentError(
            f"{since!r} cannot be copied into {to!r}.",
            reason="INVALID_ARGUMENT",
            fix="use reshape or view, so that shape and dtype are the same.",
        )
    if to._memory is since._memory and device_copy.overlap(to, since):
        raise ArgumentError(
            "the arrays overlap, and a graph cannot copy through new memory.",
            reason="INVALID_ARGUMENT",
            fix="copy to another array.",
        )
    if isinstance(to._rows, StrideLayout) or isinstance(since._rows, StrideLayout):
        move = strided_copy.common_axes(to._shape, to.strides, since.strides, to.itemsize).move
        moves = [] if move is None else [move]
    else:
        moves = list(strided.copies_between(to._as_rows(), since._as_rows()))
    if len(moves) != 1:
        raise _several("copy", since)
    return strided_copy.command(0, to, since, moves[0])


def _fill(array: ArrayLike, value: Any) -> commands_pb2.Command:
    pattern = device_fill.pattern_of(array, value)
    if array._rows is not None or len(pattern) not in device_fill.PATTERNS or array._offset % len(pattern):
        raise _several("fill", array)
    plain = encode.fill(0, array._memory.handle, array._offset, array.nbytes, pattern)
    return commands_pb2.Command.FromString(plain.SerializeToString())


def _several(kind: str, array: ArrayLike) -> ArgumentError:
    return ArgumentError(
        f"a {kind} of {array!r} is not one node of a graph, because its elements are not contiguous or have a size "
        "that the daemon cannot repeat.",
        reason="INVALID_ARGUMENT",
        fix="pass a contiguous array, or record the graph again.",
    )
