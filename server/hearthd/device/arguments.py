"""Typed protobuf arguments to a parameter block: the readable form of what clients pack themselves."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hearth_proto.launches import pack_layout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2

SCALARS = {
    "float32": "<f",
    "float64": "<d",
    "int32": "<i",
    "int64": "<q",
    "uint32": "<I",
    "uint64": "<Q",
    "boolean": "<?",
}


def pack_arguments(arguments: Iterable[commands_pb2.Argument]) -> tuple[bytes, tuple[int, ...], bytes]:
    """Layout, buffer handles and block. Every argument starts at a multiple of 8: the plan moves it to its place."""
    layout: list[tuple[int, int, bool]] = []
    buffers: list[int] = []
    block = bytearray()
    for index, argument in enumerate(arguments):
        kind = argument.WhichOneof("value")
        if kind is None:
            raise Refusal(
                Reason.LAUNCH_INVALID,
                f"argument {index} has no value",
                fix="set one of pointer, raw or a scalar",
                details={"argument": index},
            )
        if kind == "pointer":
            buffers.append(argument.pointer.buffer)
            value = struct.pack("<Q", argument.pointer.offset)
        elif kind == "raw":
            value = argument.raw
        else:
            value = struct.pack(SCALARS[kind], getattr(argument, kind))
        block += bytes(-len(block) % 8)
        layout.append((len(block), len(value), kind == "pointer"))
        block += value
        if len(block) > 0x7FFF:
            raise Refusal(Reason.LAUNCH_INVALID, "the arguments take more than 32767 bytes", fix="pass a buffer")
    return pack_layout(layout), tuple(buffers), bytes(block)
