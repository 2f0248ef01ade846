"""Packs typed protobuf arguments, the readable form of a launch, into a parameter block."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hearth_proto.launches import TENSOR_MAP_BYTES, AccessWindow, Attributes, LaunchFlag, LayoutEntry, pack_layout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.session.launch_plan import Q

SCALARS = {
    "float32": "<f",
    "float64": "<d",
    "int32": "<i",
    "int64": "<q",
    "uint32": "<I",
    "uint64": "<Q",
    "boolean": "<?",
}

MODES = {
    commands_pb2.LAUNCH_MODE_CHECKED: 0,
    commands_pb2.LAUNCH_MODE_VALIDATE: int(LaunchFlag.VALIDATE),
    commands_pb2.LAUNCH_MODE_UNCHECKED: int(LaunchFlag.UNCHECKED),
}
"""Launch flags of each mode."""

_MAX_ENUMERATOR = 0xFFFF


def dim(message: commands_pb2.Dim3) -> tuple[int, int, int]:
    """Returns a grid, block or cluster; y and z are 1 if they are not set, x is not defaulted."""
    return message.x, message.y or 1, message.z or 1


def cluster_of(command: commands_pb2.Launch | commands_pb2.Dispatch) -> tuple[int, int, int]:
    """Returns the blocks of a cluster along each axis; zeros without clusters."""
    return dim(command.cluster) if command.HasField("cluster") else (0, 0, 0)


def flags_of(command: commands_pb2.Launch | commands_pb2.Dispatch) -> int:
    """Returns the flags of the record of a launch. Raises Refusal(INVALID_ARGUMENT) for an unknown mode."""
    if command.mode not in MODES:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"launch mode {command.mode} is unknown",
            fix=f"use one of {', '.join(map(commands_pb2.LaunchMode.Name, MODES))}",
            details={"mode": command.mode},
            fields=["mode"],
        )
    cooperative = LaunchFlag.COOPERATIVE if command.cooperative else 0
    return MODES[command.mode] | cooperative | (LaunchFlag.FIT if command.fit else 0)


def attributes_of(message: commands_pb2.LaunchAttributes) -> Attributes:
    """Returns the attributes of a launch for its record. Values are checked with the record.

    Raises Refusal(INVALID_ARGUMENT) for enumerators that a record cannot contain.
    """
    window = None
    given = message.access_policy_window
    for name, value in (("mem_sync_domain", message.mem_sync_domain), ("hit", given.hit), ("miss", given.miss)):
        if not 0 <= value <= _MAX_ENUMERATOR:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"the launch attribute {name} is {value}, which is unknown",
                fix="see LaunchAttributes in hearth_proto/v1/commands.proto",
                details={"attribute": name, "value": value},
                fields=["attributes"],
            )
    if message.HasField("access_policy_window"):
        window = AccessWindow(given.buffer, given.offset, given.size, given.hit_ratio, given.hit, given.miss)
    priority = message.priority if message.HasField("priority") else None
    return Attributes(message.programmatic_stream_serialization, priority, message.mem_sync_domain, window)


def pack_arguments(arguments: Iterable[commands_pb2.Argument]) -> tuple[bytes, tuple[int, ...], bytes]:
    """Returns the packed layout, the handles of buffers and tensor maps, and the parameter block.

    Every argument starts at a multiple of 8 bytes; the launch plan moves it to the offset that the kernel expects.
    """
    layout: list[LayoutEntry] = []
    buffers: list[int] = []
    block = bytearray()
    for index, argument in enumerate(arguments):
        kind = argument.WhichOneof("value")
        if kind is None:
            raise Refusal(
                Reason.LAUNCH_INVALID,
                f"argument {index} has no value",
                fix="set one of pointer, tensor_map, raw, structure or a scalar",
                details={"argument": index},
                fields=[f"arguments[{index}]"],
            )
        read_only = kind == "int64"  # an integer, which is converted to the parameter's type
        if kind == "pointer":
            buffers.append(argument.pointer.buffer)
            read_only = argument.pointer.read_only
            value = struct.pack("<Q", argument.pointer.offset)
        elif kind == "tensor_map":
            buffers.append(argument.tensor_map)
            value = bytes(TENSOR_MAP_BYTES)
        elif kind == "structure":
            value = argument.structure.data
        else:
            value = value_bytes(argument)
        block += bytes(-len(block) % 8)
        start = len(block)
        layout.append(LayoutEntry(start, len(value), kind in ("pointer", "tensor_map"), read_only))
        block += value
        for field in argument.structure.pointers if kind == "structure" else ():
            _check_field(index, field, len(value))
            buffers.append(field.pointer.buffer)
            layout.append(LayoutEntry(start + field.at, Q.size, True, field.pointer.read_only))
            Q.pack_into(block, start + field.at, field.pointer.offset)
        if len(block) > 0x7FFF:
            raise Refusal(
                Reason.LAUNCH_INVALID,
                "the arguments take more than 32767 bytes",
                fix="pass a buffer",
                fields=["arguments"],
            )
    return pack_layout(layout), tuple(buffers), bytes(block)


def _check_field(index: int, field: commands_pb2.Argument.Structure.Field, size: int) -> None:
    """Raises Refusal(LAUNCH_INVALID) if a pointer does not lie inside the `size` bytes of structure `index`."""
    if field.at + Q.size > size:
        raise Refusal(
            Reason.LAUNCH_INVALID,
            f"argument {index} has a pointer at byte {field.at}; the structure has {size} bytes, an address {Q.size}",
            fix="set `at` to the offset of a pointer in the structure",
            details={"argument": index},
            fields=[f"arguments[{index}].structure.pointers"],
        )


def value_bytes(argument: commands_pb2.Argument) -> bytes:
    """Returns the bytes of a value, that is, of an argument that is no buffer, tensor map or structure."""
    kind = argument.WhichOneof("value")
    assert kind is not None
    return argument.raw if kind == "raw" else struct.pack(SCALARS[kind], getattr(argument, kind))
