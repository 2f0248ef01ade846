"""A checked launch: what stays the same from one launch of a function to the next with this geometry and layout."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hearth_proto.launches import HEADER, Place, Record, padded
from hearthd.device.server import Function

Q = struct.Struct("<Q")

KEY_AT = 24
"""A plan depends on a record's bytes from here (the grid) to the end of its layout."""


class Plan:
    """Geometry, where the buffers' addresses go, and how the client's parameter block becomes the kernel's.

    `moves` is empty where the client's block is the kernel's own; else (from, to, size) of each parameter: C leaves the
    alignment of a struct that is passed as bytes to its declaration, which only the kernel's side knows; and the driver
    refuses a block that is longer than the parameters ("too many resources requested for launch").
    """

    __slots__ = ("block", "function", "grid", "handles", "handles_at", "length", "moves", "name", "params_at",
                 "params_size", "patches", "real_size", "shared_mem", "timeout_ns")  # fmt: skip

    def __init__(self, function: Function, name: str, record: Record, given: Sequence[Place]) -> None:
        real = function.parameters
        self.function = function
        self.name = name
        self.grid = record.grid
        self.block = record.block
        self.shared_mem = record.shared_mem
        self.timeout_ns = record.timeout_ns
        pointers = len(record.buffers)
        self.handles = struct.Struct(f"<{pointers}Q")
        self.handles_at = HEADER.size + padded(len(record.layout))
        self.params_at = self.handles_at + 8 * pointers
        self.params_size = len(record.params)
        self.length = self.params_at + padded(self.params_size)
        self.real_size = max((offset + size for offset, size in real), default=0)
        pairs = list(zip(given, real, strict=True))
        in_place = self.params_size == self.real_size and all(mine[0] == theirs[0] for mine, theirs in pairs)
        self.moves = () if in_place else tuple((mine[0], theirs[0], mine[1]) for mine, theirs in pairs)
        self.patches = tuple(theirs[0] for mine, theirs in pairs if mine[2])

    def params(self, data: bytes, record_at: int) -> bytearray:
        """The kernel's parameter block from a record in `data`, offsets still in the place of addresses."""
        start = record_at + self.params_at
        return self.params_of(data[start : start + self.params_size])

    def params_of(self, given: bytes) -> bytearray:
        """The kernel's parameter block from the client's."""
        if not self.moves:
            return bytearray(given)
        block = bytearray(self.real_size)
        for source, target, size in self.moves:
            block[target : target + size] = given[source : source + size]
        return block


def check_layout(given: Sequence[Place], params_size: int) -> str:
    """What is wrong with a layout in itself, or an empty string: parameters inside the block, not overlapping."""
    end = 0
    for index, (offset, size, buffer, _) in enumerate(given):
        if offset < end:
            return f"argument {index} at offset {offset} overlaps the one before, which ends at {end}"
        if buffer and size != Q.size:
            return f"argument {index} is a buffer of {size} bytes; an address has {Q.size}"
        end = offset + size
    if end > params_size:
        return f"the arguments end at {end}, the parameter block at {params_size}"
    return ""
