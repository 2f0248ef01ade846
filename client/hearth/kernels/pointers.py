"""Pointers to device arrays, structs that contain them, and arrays of pointers.

Structs with pointers are `Struct`, and NumPy structures with objects.

A field of NumPy's dtype ``object`` has the size and the alignment of a pointer in C. Where such a structure is an
argument, its objects are device arrays, `pointer(...)`, or None and 0 for null pointers. The launch record has an entry
for each pointer, and the daemon writes the addresses: see "nested pointer" in `hearth_proto.launches`.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeVar

from hearth import base_stream as streams
from hearth import lazy_numpy as np
from hearth import shapes
from hearth.arrays.allocation import allocate
from hearth.arrays.read_only import ReadOnly
from hearth.errors import ArgumentError, LaunchError, LaunchTypeError, UnsupportedError
from hearth.session.memory import DeviceOperand
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.interfaces import DeviceContext
    from hearth.session.connection import Connection

A = TypeVar("A")

_OFFSET = struct.Struct("<Q")
POINTER_BYTES = _OFFSET.size
"""Size of an address, in bytes."""


class Pointer(DeviceOperand):
    """The address of a byte of a device array; see `pointer`."""

    __slots__ = ("_connection", "array", "offset")

    def __init__(self, array: Any, offset: int) -> None:
        self.array = array
        self.offset = offset
        self._memory = array._memory
        self._offset = array._offset + offset
        self._connection = array._connection

    @property
    def durable(self) -> bool:
        """True if the array is restored after a loss of the device."""
        return bool(self.array.durable)

    def __repr__(self) -> str:
        return f"pointer({self.array!r}, {self.offset})"


def pointer(array: DeviceOperand, offset: SupportsIndex = 0) -> DeviceOperand:
    """Returns the address of a device array, or of a byte within it.

    The value is a kernel argument, and a field of a struct that is passed by value can have it. The client
    does not know the address: the daemon writes it when the kernel is launched.

    Args:
        array: A device array, which may be marked with `read_only`, or another pointer.
        offset: Bytes from the array's first element, from 0 to the end of the array. To count elements, use a view:
            ``hearth.pointer(x[4:])``.

    Returns:
        The pointer, which is marked with `read_only` if `array` is.

    Raises:
        ArgumentError: `offset` is negative or beyond the end of the array (reason ``OUT_OF_BOUNDS``).
        LaunchTypeError: `array` is not a device array, or `offset` is no integer.
    """
    if isinstance(array, ReadOnly):
        return ReadOnly(pointer(array.array, offset))
    if not is_address(array):
        raise LaunchTypeError(
            f"pointer takes a device array, not {array!r} ({type(array).__name__}).",
            fix="upload the data with x = gpu.asarray(...), and use hearth.pointer(x).",
        )
    try:
        start = operator.index(offset)
    except TypeError:
        raise LaunchTypeError(
            f"the offset of a pointer is {offset!r} ({type(offset).__name__}); it must be an integer.",
            fix="pass a number of bytes.",
        ) from None
    if isinstance(array, Pointer):
        return pointer(array.array, array.offset + start)
    size = _extent(array)
    if not 0 <= start <= size:
        raise ArgumentError(
            f"the pointer starts at byte {start} of {array!r}, which has {size} bytes.",
            reason="OUT_OF_BOUNDS",
            fix=f"pass an offset in bytes from 0 to {size}; for an element use a view, e.g. hearth.pointer(x[4:]).",
        )
    return Pointer(array, start)


def is_address(value: object) -> bool:
    """Returns True for an operand that is an address, in contrast to tensor maps and other objects.

    Args:
        value: Any object.

    Returns:
        True for a device array, a pointer, and either of them marked with `read_only`.
    """
    return isinstance(value, DeviceOperand) and value._passed == DeviceOperand._passed and hasattr(value, "_connection")


def _extent(array: Any) -> int:
    """Returns the bytes from the first element of an array to the end of its last one."""
    rows = array._rows
    return int(array.nbytes if rows is None else rows.end)


class PointerStruct(NamedTuple):
    """A struct by value: its bytes, with zeros in place of addresses, and its pointers by ascending offset."""

    data: bytes
    pointers: tuple[tuple[int, DeviceOperand], ...]

    @property
    def nested(self) -> tuple[tuple[int, bool], ...]:
        """Offset in bytes of each pointer, and True if the kernel only reads through it."""
        return tuple((at, isinstance(operand, ReadOnly)) for at, operand in self.pointers)

    def with_offsets(self) -> bytes:
        """Returns the bytes of the struct, with offsets into buffers in place of addresses."""
        block = bytearray(self.data)
        for at, operand in self.pointers:
            _OFFSET.pack_into(block, at, operand._offset)
        return bytes(block)


def struct_of_fields(data: bytes, pointers: Mapping[int, Any]) -> PointerStruct:
    """Checks the pointers of a `Struct`.

    Args:
        data: Bytes of the struct.
        pointers: Target of the pointer at each offset in bytes.

    Returns:
        The struct, without its null pointers.

    Raises:
        LaunchTypeError: A target is not a device array, an offset lies outside of the struct, or two pointers overlap.
    """
    block = bytearray(data)
    targets = []
    end = 0
    for at in sorted(pointers):
        if not isinstance(at, int) or at < end or at + POINTER_BYTES > len(block):
            raise LaunchTypeError(
                f"a struct of {len(block)} bytes has a pointer at byte {at!r}; a pointer has {POINTER_BYTES} bytes, "
                "which must lie inside the struct and not in another pointer.",
                fix="use the offsetof() of the pointer in C; of a ctypes structure it is Type.field.offset.",
            )
        block[at : at + POINTER_BYTES] = bytes(POINTER_BYTES)
        end = at + POINTER_BYTES
        target = checked_target(f"the pointer at byte {at} of a struct", pointers[at])
        if target is not None:
            targets.append((at, target))
    return PointerStruct(bytes(block), tuple(targets))


def struct_of_numpy(subject: str, value: Any) -> PointerStruct:
    """Returns the struct of a NumPy structure with fields of dtype ``object``.

    Args:
        subject: The value, for errors.
        value: A structured scalar or an array of one structure.

    Returns:
        The struct.

    Raises:
        LaunchTypeError: A field of dtype ``object`` holds anything but a device array, a pointer, None or 0.
    """
    array = np.asarray(value).reshape(())
    plain = np.zeros((), plain_dtype(array.dtype))
    targets = [
        (at, target)
        for at, name, field_value in _copy_plain_fields(array.dtype, array, plain, 0, "")
        if (target := checked_target(f"{subject}, field {name!r},", field_value)) is not None
    ]
    return PointerStruct(plain.tobytes(), tuple(sorted(targets, key=lambda pair: pair[0])))


def struct_of(arg: Any) -> PointerStruct | None:
    """Returns the struct of an argument that may contain pointers.

    Args:
        arg: An argument of a kernel.

    Returns:
        The struct; None for any other argument.

    Raises:
        LaunchTypeError: A pointer's target is not a device array.
    """
    pointers = getattr(arg, "pointers", None)
    if isinstance(pointers, Mapping):
        return struct_of_fields(bytes(arg.data), pointers) if pointers else None
    if np.is_imported() and isinstance(arg, np.void | np.ndarray) and arg.dtype.hasobject and arg.dtype.names:
        return struct_of_numpy("a struct", arg)
    return None


def checked_target(subject: str, value: Any) -> DeviceOperand | None:
    """Checks the target of a pointer.

    Args:
        subject: The pointer, for the error.
        value: The target.

    Returns:
        The target; None for a null pointer.

    Raises:
        LaunchTypeError: The target is neither a device array nor None nor 0.
    """
    if value is None or (type(value) is int and not value):
        return None
    if is_address(value):
        operand: DeviceOperand = value
        return operand
    kind = type(value).__name__
    fix = "upload the data with x = gpu.asarray(...), and use hearth.pointer(x)."
    if isinstance(value, int) or (np.is_imported() and isinstance(value, np.integer)):
        kind = "an integer, which the daemon cannot check and a new device process makes invalid"
        fix = "use hearth.pointer(x, offset in bytes) for the address of a device array x; None is a null pointer."
    raise LaunchTypeError(
        f"{subject} is {value!r} ({kind}); it must be a device array, a pointer or None.",
        fix=fix,
    )


def plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of a structure on the device.

    Args:
        dtype: Dtype whose fields of dtype ``object`` are pointers.

    Returns:
        `dtype` in native byte order, with uint64 in place of ``object`` at the same offsets.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        inner: np.dtype[Any] = np.dtype((plain_dtype(base), shape))
        return inner
    if dtype.names is not None and dtype.fields is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        spec: dict[str, Any] = {
            "names": list(dtype.names),
            "formats": [plain_dtype(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
        plain: np.dtype[Any] = np.dtype(spec)  # type: ignore[call-overload]
        return plain
    return np.dtype(np.uint64) if dtype.kind == "O" else dtype.newbyteorder("=")


def _copy_plain_fields(
    dtype: np.dtype[Any], source: Any, target: Any, at: int, name: str
) -> Iterator[tuple[int, str, Any]]:
    """Copies all elements that are no objects to `target`, and yields offset, name and value of each object."""
    if dtype.kind == "O":
        yield at, name, source[()]
    elif dtype.subdtype is not None:
        base, shape = dtype.subdtype
        for number, index in enumerate(np.ndindex(*shape)):
            label = f"{name}[{', '.join(map(str, index))}]"
            yield from _copy_plain_fields(
                base, source[(*index, ...)], target[(*index, ...)], at + number * base.itemsize, label
            )
    elif dtype.names is not None and dtype.fields is not None:
        for field_name in dtype.names:
            field, offset = dtype.fields[field_name][:2]
            label = f"{name}.{field_name}" if name else field_name
            yield from _copy_plain_fields(field, source[field_name], target[field_name], at + offset, label)
    else:
        target[...] = source


def operands(index: int, arg: Any) -> list[tuple[str, DeviceOperand]]:
    """Returns the device operands of an argument: the argument itself, or the pointers of a struct.

    Args:
        index: Number of the argument.
        arg: The argument.

    Returns:
        For each operand its name in errors, and the operand.
    """
    if isinstance(arg, DeviceOperand):
        return [(f"argument {index}", arg)]
    contents = struct_of(arg)
    if contents is None:
        return []
    return [(f"the pointer at byte {at} of argument {index}", operand) for at, operand in contents.pointers]


def check_supported(supported: bool) -> None:
    """Checks that the daemon takes pointers in structs.

    Args:
        supported: `Limits.struct_pointers` of the session.

    Raises:
        UnsupportedError: The daemon is older than this feature.
    """
    if not supported:
        raise UnsupportedError(
            "this daemon takes no device pointers in structs, and makes no arrays of pointers.",
            fix="pass the arrays as separate arguments, or update the daemon to a version with the feature "
            '"struct_pointers".',
        )


# ---- arrays of pointers ----

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
    check_supported(connection.limits.struct_pointers)
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
    plain = plain_dtype(targets.dtype)
    targets_found: list[tuple[int, DeviceOperand]] = []
    blocks = []
    for index, structure in enumerate(np.asarray(targets).reshape(-1)):
        contents = struct_of_numpy(f"structure {index}", structure)
        targets_found += [(index * plain.itemsize + at, target) for at, target in contents.pointers]
        blocks.append(contents.data)
    return targets.shape, plain, b"".join(blocks), targets_found


def _listed(targets: Iterable[Any]) -> tuple[tuple[int, ...], Dtype, bytes, _Targets]:
    """Returns the same for a list of targets, each of which may be a pair of an array and an offset in bytes."""
    if not isinstance(targets, list | tuple):
        raise LaunchTypeError(
            f"pointers takes a list of device arrays, not {targets!r} ({type(targets).__name__}).",
            fix="pass [x, y, None, (z, offset in bytes)], or a NumPy array of structures with fields of dtype object.",
        )
    targets_found: list[tuple[int, DeviceOperand]] = []
    for index, entry in enumerate(targets):
        target = pointer(*entry) if isinstance(entry, tuple) and len(entry) == 2 else entry
        operand = checked_target(f"pointer {index}", target)
        if operand is not None:
            targets_found.append((index * POINTER_BYTES, operand))
    return (len(targets),), shapes.type_of("uint64"), bytes(POINTER_BYTES * len(targets)), targets_found


def _check(connection: Connection, target: Any) -> None:
    """Raises the error of a target that cannot be used on this connection."""
    if target._connection is not connection:
        raise UnsupportedError(
            f"the target {target!r} belongs to another device or session than the array of pointers.",
            fix="use arrays of one device; copy through the host with gpu.asarray(x.get()).",
        )
    connection.check(target._memory, f"the target {target!r}")
