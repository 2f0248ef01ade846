"""Device arrays of pointers, and of structures with pointers, whose addresses the daemon writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hearth import base_stream as streams
from hearth import lazy_numpy as np
from hearth import shapes
from hearth.arrays.allocation import allocate
from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, LaunchError, LaunchTypeError, UnsupportedError
from hearth.kernels import pointers
from hearth.kernels.pointers import POINTER_BYTES, pointer
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.interfaces import DeviceContext
    from hearth.session.connection import Connection
    from hearth.session.memory import DeviceOperand

A = TypeVar("A")

MAX_POINTERS = 65_536
"""Maximum number of pointers in one array; the daemon checks it too."""

_Targets = Sequence[tuple[int, "DeviceOperand"]]


def pointer_array(device: DeviceContext[A], targets: Any, stream: BaseStream | None = None) -> A:
    """Makes an array of pointers; see `hearth.Device.pointers`.

    Args:
        device: The device.
        targets: The target of each pointer, or a NumPy array of structures.
        stream: Stream of the allocation and the write; None: the current one.

    Returns:
        The array.

    Raises:
        ArgumentError: There are too many pointers for one command, or an offset is beyond the end of its array.
        LaunchTypeError: A target is not a device array.
        LaunchError: The stream's work is being recorded.
        UnsupportedError: A target belongs to another device or session, or the daemon has no arrays of pointers.
    """
    connection = device._connection
    pointers.check_supported(connection.limits.struct_pointers)
    shape, dtype, data, entries = _structures(targets) if _is_structured(targets) else _listed(targets)
    limit = connection.limits.max_inline_bytes
    if len(data) > limit or len(entries) > MAX_POINTERS:
        raise ArgumentError(
            f"an array of {len(entries)} pointers in {len(data)} bytes does not fit one command; the maximum is "
            f"{MAX_POINTERS} pointers in {limit} bytes.",
            reason="MESSAGE_TOO_LARGE",
            fix="make several arrays of pointers, and an array of pointers to these.",
        )
    command = commands_pb2.Command()
    message = command.write_pointers
    indexes: dict[tuple[int, bool], int] = {}
    for at, target in entries:
        key = target._memory.handle, isinstance(target, ReadOnly)
        if key not in indexes:
            _check(connection, target)
            indexes[key] = len(indexes)
            message.targets.add(buffer=key[0], read_only=key[1])
        message.at.append(at)
        message.target.append(indexes[key])
        message.offset.append(target._offset)
    on = stream if stream is not None else streams.current(connection)
    if on is not None and on._recorder is not None:
        raise LaunchError(
            "an array of pointers cannot be made while a graph is being recorded.",
            reason="CAPTURE_INVALID",
            fix="make it before the block, or on another stream.",
        )
    array: Any = allocate(device, shape, dtype, stream)
    if data:
        attachment = array._usable()
        message.buffer = array._memory.handle
        message.data = data
        command.stream = streams.resolve(stream, connection, attachment)
        attachment.submit(command)
    result: A = array
    return result


def _is_structured(targets: Any) -> bool:
    return np.is_imported() and isinstance(targets, np.ndarray | np.void) and targets.dtype.names is not None


def _structures(targets: Any) -> tuple[tuple[int, ...], Dtype, bytes, _Targets]:
    """Returns shape, dtype and bytes of an array of structures, and the offset and the target of each pointer."""
    plain = pointers.plain_dtype(targets.dtype)
    targets_found: list[tuple[int, DeviceOperand]] = []
    blocks = []
    for index, structure in enumerate(np.asarray(targets).reshape(-1)):
        contents = pointers.struct_of_numpy(f"structure {index}", structure)
        targets_found += [(index * plain.itemsize + at, target) for at, target in contents.pointers]
        blocks.append(contents.data)
    return targets.shape, plain, b"".join(blocks), targets_found


def _listed(targets: Iterable[Any]) -> tuple[tuple[int, ...], Dtype, bytes, _Targets]:
    """Returns the same for a list of targets, each of which may be a pair of an array and an offset in bytes."""
    if not isinstance(targets, list | tuple):
        raise LaunchTypeError(
            f"pointers takes a list of device arrays, not {targets!r} ({type(targets).__name__}).",
            reason="LAUNCH_INVALID",
            fix="pass [x, y, None, (z, offset in bytes)], or a NumPy array of structures with fields of dtype object.",
        )
    targets_found: list[tuple[int, DeviceOperand]] = []
    for index, entry in enumerate(targets):
        target = pointer(*entry) if isinstance(entry, tuple) and len(entry) == 2 else entry
        operand = pointers.checked_target(f"pointer {index}", target)
        if operand is not None:
            targets_found.append((index * POINTER_BYTES, operand))
    return (len(targets),), shapes.type_of("uint64"), bytes(POINTER_BYTES * len(targets)), targets_found


def _check(connection: Connection, target: Any) -> None:
    """Raises the error of a target that cannot be used on this connection."""
    if target._connection is not connection:
        raise UnsupportedError(
            f"the target {target!r} belongs to another device or session than the array of pointers.",
            reason="UNSUPPORTED",
            fix="use arrays of one device; copy through the host with gpu.asarray(x.get()).",
        )
    connection.check(target._memory, f"the target {target!r}")
