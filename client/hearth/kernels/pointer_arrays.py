"""Device arrays of pointers, and of structures with pointers, whose addresses the daemon writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hearth import base_stream as streams
from hearth import lazy_numpy as np
from hearth import shapes
from hearth.arrays.allocation import allocate
from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, LaunchTypeError, UnsupportedError
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
"""Most pointers in one array, which the daemon checks too."""

_Places = Sequence[tuple[int, "DeviceOperand"]]


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
        UnsupportedError: A target belongs to another device or session, or the daemon has no arrays of pointers.
    """
    connection = device._connection
    pointers.check_supported(connection.limits.struct_pointers)
    shape, dtype, data, places = _structures(targets) if _is_structured(targets) else _listed(targets)
    limit = connection.limits.max_inline_bytes
    if len(data) > limit or len(places) > MAX_POINTERS:
        raise ArgumentError(
            f"an array of {len(places)} pointers in {len(data)} bytes does not fit one command; the maximum is "
            f"{MAX_POINTERS} pointers in {limit} bytes.",
            reason="MESSAGE_TOO_LARGE",
            fix="make several arrays of pointers, and an array of pointers to these.",
        )
    command = commands_pb2.Command()
    written = command.write_pointers
    indexes: dict[tuple[int, bool], int] = {}
    for at, target in places:
        key = target._memory.handle, isinstance(target, ReadOnly)
        if key not in indexes:
            _check(connection, target)
            indexes[key] = len(indexes)
            written.targets.add(buffer=key[0], read_only=key[1])
        written.at.append(at)
        written.target.append(indexes[key])
        written.offset.append(target._offset)
    made: Any = allocate(device, shape, dtype, stream)
    if data:
        attachment = made._usable()
        written.buffer = made._memory.handle
        written.data = data
        command.stream = streams.resolve(stream, connection, attachment)
        attachment.submit(command)
    array: A = made
    return array


def _is_structured(targets: Any) -> bool:
    return np.here() and isinstance(targets, np.ndarray | np.void) and targets.dtype.names is not None


def _structures(targets: Any) -> tuple[tuple[int, ...], Dtype, bytes, _Places]:
    """Returns shape, dtype and bytes of an array of structures, and the offset and the target of each pointer."""
    plain = pointers.plain_dtype(targets.dtype)
    found: list[tuple[int, DeviceOperand]] = []
    parts = []
    for index, each in enumerate(np.asarray(targets).reshape(-1)):
        one = pointers.of_numpy(f"structure {index}", each)
        found += [(index * plain.itemsize + at, target) for at, target in one.pointers]
        parts.append(one.data)
    return targets.shape, plain, b"".join(parts), found


def _listed(targets: Iterable[Any]) -> tuple[tuple[int, ...], Dtype, bytes, _Places]:
    """Returns the same for a list of targets, each of which may be a pair of an array and an offset in bytes."""
    if not isinstance(targets, list | tuple):
        raise LaunchTypeError(
            f"pointers takes a list of device arrays, not {targets!r} ({type(targets).__name__}).",
            reason="LAUNCH_INVALID",
            fix="pass [x, y, None, (z, offset in bytes)], or a NumPy array of structures with fields of dtype object.",
        )
    found: list[tuple[int, DeviceOperand]] = []
    for index, each in enumerate(targets):
        target = pointer(*each) if isinstance(each, tuple) and len(each) == 2 else each
        operand = pointers.checked(f"pointer {index}", target)
        if operand is not None:
            found.append((index * POINTER_BYTES, operand))
    return (len(targets),), shapes.type_of("uint64"), bytes(POINTER_BYTES * len(targets)), found


def _check(connection: Connection, target: Any) -> None:
    """Raises the error of a target that cannot be used on this connection."""
    if target._connection is not connection:
        raise UnsupportedError(
            f"the target {target!r} belongs to another device or session than the array of pointers.",
            reason="UNSUPPORTED",
            fix="use arrays of one device; copy through the host with gpu.asarray(x.get()).",
        )
    connection.check(target._memory, f"the target {target!r}")
