"""A checked launch: what stays the same from one launch of a function to the next with this geometry and layout."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hearth_proto.launches import EXTENSION, HEADER, TENSOR_MAP_BYTES, LaunchFlag, Place, Record, padded
from hearthd.device.backend.graph_nodes import LaunchAttributes
from hearthd.device.backend.resources import Function
from hearthd.device.platform.tally import weigh

Q = struct.Struct("<Q")

KEY_AT = 24
"""A plan depends on a record's bytes from here (the grid) to the end of its layout."""


class LaunchPlan:
    """Geometry, where the buffers' addresses go, and how the client's parameter block becomes the kernel's.

    `moves` is empty where the client's block is the kernel's own; else (from, to, size) of each parameter: C leaves the
    alignment of a struct that is passed as bytes to its declaration, which only the kernel's side knows; and the driver
    refuses a block that is longer than the parameters ("too many resources requested for launch").
    """

    __slots__ = ("addresses", "attributes", "block", "function", "grid", "handles", "handles_at", "iterations",
                 "length", "moves", "name", "params_at", "params_size", "patches", "pointers", "readers", "real_size",
                 "shared_mem", "threads", "timeout_ns", "weight")  # fmt: skip

    def __init__(self, function: Function, name: str, record: Record, given: Sequence[Place]) -> None:
        real = function.parameters
        extension = record.extension
        self.function = function
        self.name = name
        self.grid = record.grid
        self.block = record.block
        self.shared_mem = record.shared_mem
        self.timeout_ns = record.timeout_ns
        self.iterations = extension.iterations if extension is not None else 1
        self.attributes = attributes_of(record)
        self.threads = (
            record.grid[0] * record.grid[1] * record.grid[2] * record.block[0] * record.block[1] * record.block[2]
        )
        self.weight = weigh(self.threads, None)
        """What a launch adds to the telemetry's tally."""
        pointers = len(record.buffers)
        self.handles = struct.Struct(f"<{pointers}Q")
        self.handles_at = HEADER.size + padded(len(record.layout))
        self.params_at = self.handles_at + 8 * pointers
        self.params_size = len(record.params)
        self.real_size = max((offset + size for offset, size in real), default=0)
        pairs = list(zip(given, real, strict=True))
        in_place = self.params_size == self.real_size and all(mine.offset == theirs[0] for mine, theirs in pairs)
        self.moves = () if in_place else tuple((mine.offset, theirs[0], mine.size) for mine, theirs in pairs)
        self.pointers = tuple((theirs[0], mine.size == TENSOR_MAP_BYTES) for mine, theirs in pairs if mine.pointer)
        """Where each address or tensor map goes, and whether it is the latter."""
        self.patches = tuple(offset for offset, _ in self.pointers)
        self.addresses = addresses(given)
        self.readers = tuple(mine.read_only for mine in given if mine.pointer)
        """Which of the pointers the kernel only reads through; empty where it is none."""
        if not any(self.readers):
            self.readers = ()
        plain = extension is None and self.attributes is None
        plain = plain and not record.flags & LaunchFlag.VALIDATE and not self._has_maps()
        self.length = self.params_at + padded(self.params_size) if plain else -1
        """Bytes of a record that may take the short way; -1: none may."""

    def _has_maps(self) -> bool:
        return any(tensor_map for _, tensor_map in self.pointers)

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


def addresses(given: Sequence[Place]) -> tuple[tuple[int, int], ...]:
    """Of each pointer: which argument it is, and where its offset stands in the client's block; -1: it has none."""
    return tuple(
        (index, place.offset if place.size == Q.size else -1) for index, place in enumerate(given) if place.pointer
    )


def attributes_of(record: Record) -> LaunchAttributes | None:
    """What sets the launch apart from a plain one; None for a plain one."""
    cooperative = bool(record.flags & LaunchFlag.COOPERATIVE)
    cluster = record.extension.cluster if record.extension is not None else (0, 0, 0)
    if not cooperative and not any(cluster):
        return None
    return LaunchAttributes(cooperative, cluster if any(cluster) else None)


def plan_key(data: bytes, record: Record) -> bytes:
    """What a plan depends on: the packed record `data` from its grid to the end of its layout.

    Marked where the record has an extension, so that no record without one, looked up by its first bytes, finds it.
    """
    layout = len(record.layout)
    if record.extension is None:
        return data[KEY_AT : HEADER.size + layout]
    return b"extended" + data[KEY_AT : HEADER.size + EXTENSION.size + layout]


def check_layout(given: Sequence[Place], params_size: int) -> str:
    """What is wrong with a layout in itself, or an empty string: parameters inside the block, not overlapping."""
    end = 0
    for index, place in enumerate(given):
        if place.offset < end:
            return f"argument {index} at offset {place.offset} overlaps the one before, which ends at {end}"
        if place.pointer and place.size not in (Q.size, TENSOR_MAP_BYTES):
            return (
                f"argument {index} is a pointer of {place.size} bytes; an address has {Q.size}, a tensor map "
                f"{TENSOR_MAP_BYTES}"
            )
        if place.read_only and not place.pointer:
            return f"argument {index} is a value and marked as read only; only buffers are"
        end = place.offset + place.size
    if end > params_size:
        return f"the arguments end at {end}, the parameter block at {params_size}"
    return ""
