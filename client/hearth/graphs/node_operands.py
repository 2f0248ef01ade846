"""Operands of copies and fills in graphs, as one command of the daemon each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hearth.arrays import device_copy, device_fill, strided, strided_copy
from hearth.arrays.base_array import BaseArray
from hearth.codec import encode
from hearth.errors import ArgumentError, LaunchError
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
        LaunchError: `args` is no tuple or list of two elements, or is not of arrays.
        ArgumentError: The arrays do not fit, or the work would need more than one copy or fill.
        DtypeError: The value cannot be converted to the array's dtype.
    """
    is_pair = isinstance(args, tuple | list) and len(args) == 2
    arrays = () if not is_pair else args if kind == "copy" else args[:1]
    if not is_pair or not all(isinstance(array, BaseArray) for array in arrays):
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
                fix="pass arrays of the device of the graph.",
            )
    destination = args[0]
    if not destination.nbytes:
        raise ArgumentError(
            f"{destination!r} has no bytes, and a node of a graph has.",
            fix="record the graph again.",
        )
    return _copy(destination, args[1]) if kind == "copy" else _fill(destination, args[1])


def _copy(destination: ArrayLike, source: ArrayLike) -> commands_pb2.Command:
    if source._shape != destination._shape or source.dtype != destination.dtype:
        raise ArgumentError(
            f"{source!r} cannot be copied into {destination!r}.",
            fix="use reshape or view, so that shape and dtype are the same.",
        )
    if destination._memory is source._memory and device_copy.overlap(destination, source):
        raise ArgumentError(
            "the arrays overlap, and a graph cannot copy through new memory.",
            fix="copy to another array.",
        )
    if isinstance(destination._rows, StrideLayout) or isinstance(source._rows, StrideLayout):
        single_copy = strided_copy.common_axes(
            destination._shape, destination.strides, source.strides, destination.itemsize
        ).single_copy
        copies = [] if single_copy is None else [single_copy]
    else:
        copies = list(strided.copies_between(destination._as_rows(), source._as_rows()))
    if len(copies) != 1:
        raise _several_nodes("copy", source)
    return strided_copy.command(0, destination, source, copies[0])


def _fill(array: ArrayLike, value: Any) -> commands_pb2.Command:
    pattern = device_fill.pattern_of(array, value)
    if array._rows is not None or len(pattern) not in device_fill.PATTERNS or array._offset % len(pattern):
        raise _several_nodes("fill", array)
    plain = encode.fill(0, array._memory.handle, array._offset, array.nbytes, pattern)
    return commands_pb2.Command.FromString(plain.SerializeToString())


def _several_nodes(kind: str, array: ArrayLike) -> ArgumentError:
    return ArgumentError(
        f"a {kind} of {array!r} is not one node of a graph, because its elements are not contiguous or have a size "
        "that the daemon cannot repeat.",
        fix="pass a contiguous array, or record the graph again.",
    )
