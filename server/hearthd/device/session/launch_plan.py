"""Launch plan: the checked, constant part of repeated launches of one function with one geometry and layout."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

from hearth_proto.launches import (
    HEADER,
    INTEGER_BYTES,
    TENSOR_MAP_BYTES,
    LaunchFlag,
    LayoutEntry,
    Nested,
    Record,
    extension_flags,
    extension_size,
    padded,
    split_nested,
)
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import AccessWindow, LaunchAttributes
from hearthd.device.backend.launch_limits import INTEGER_KINDS, converted, integer_range
from hearthd.device.backend.resources import Function
from hearthd.device.platform.tally import launch_weight

Q = struct.Struct("<Q")
_INTEGER = struct.Struct("<q")
_INT32 = range(-(2**31), 2**31)

KEY_OFFSET = 24
"""Offset in a record of the part that determines the plan: from the grid to the end of the layout."""


class LaunchPlan:
    """Geometry, positions of the buffers' addresses, and conversion of the client's parameter block to the kernel's.

    `moves` is empty if both blocks have the same layout; otherwise it has (from, to, size) of each parameter. The
    layouts can differ because in C the alignment of a struct that is passed as bytes depends on its declaration, which
    only the kernel's side knows. The driver refuses a block that is longer than the parameters ("too many resources
    requested for launch").
    """

    __slots__ = ("addresses", "block", "function", "grid", "handles", "handles_at", "integers",
                 "iterations", "kernel_params_size", "length", "moves", "name", "params_at", "params_size", "patches",
                 "pointers", "readers", "shared_mem", "threads", "timeout_ns", "weight")  # fmt: skip

    def __init__(self, function: Function, name: str, record: Record, layout: Sequence[LayoutEntry]) -> None:
        parameters = function.parameters
        extension = record.extension
        self.function = function
        self.name = name
        self.grid = record.grid
        self.block = record.block
        self.shared_mem = record.shared_mem
        self.timeout_ns = record.timeout_ns
        self.iterations = extension.iterations if extension is not None else 1
        self.threads = math.prod((*record.grid, *record.block))
        self.weight = launch_weight(self.threads, None)
        """Weight of one launch in the telemetry's tally."""
        pointers = len(record.buffers)
        self.handles = struct.Struct(f"<{pointers}Q")
        self.handles_at = HEADER.size + padded(len(record.layout))
        self.params_at = self.handles_at + 8 * pointers
        self.params_size = len(record.params)
        self.kernel_params_size = max((offset + size for offset, size in parameters), default=0)
        pairs = list(zip(split_nested(layout)[0], parameters, strict=True))
        in_place = self.params_size == self.kernel_params_size and all(
            entry[:2] == parameter for entry, parameter in pairs
        )
        self.moves = () if in_place else tuple((entry.offset, *parameter) for entry, parameter in pairs)
        self.integers = tuple(
            (entry.offset, *integer_range(function.kinds[index], parameter[1]), index)
            for index, (entry, parameter) in enumerate(pairs)
            if converted(entry) and parameter[1] < entry.size
        )
        """(offset in the client's block, lowest value, highest value, argument index) of each integer that is converted
        to fewer bytes."""
        self.pointers = _patches(layout, parameters)
        """(offset in the kernel's block, True for a tensor map) of each address or tensor map, nested ones included."""
        self.patches = tuple(offset for offset, _ in self.pointers)
        self.addresses = addresses(layout)
        self.readers = tuple(entry.read_only for entry in layout if entry.pointer)
        """True for each pointer that the kernel only reads through; empty if there is no such pointer."""
        if not any(self.readers):
            self.readers = ()
        has_maps = any(tensor_map for _, tensor_map in self.pointers)
        is_special = bool(record.flags & (LaunchFlag.COOPERATIVE | LaunchFlag.VALIDATE))
        plain = extension is None and not (is_special or has_maps)
        self.length = self.params_at + padded(self.params_size) if plain else -1
        """Size, in bytes, of a record that may be launched directly; -1 if no record of this plan may."""

    def params(self, data: bytes, record_at: int) -> bytearray:
        """Returns the kernel's parameter block from a record in `data`, with buffer offsets in place of addresses."""
        start = record_at + self.params_at
        return self.params_of(data[start : start + self.params_size])

    def integers_fit(self, data: bytes | bytearray, at: int = 0) -> bool:
        """Returns True if every integer of the client's block, at offset `at` of `data`, fits in its parameter."""
        for offset, low, high, _ in self.integers:  # noqa: SIM110 (a generator takes longer)
            if not low <= _INTEGER.unpack_from(data, at + offset)[0] <= high:
                return False
        return True

    def check_integers(self, params: bytes | bytearray) -> None:
        """Raises Refusal(LAUNCH_INVALID) if an integer in the client's block does not fit in its parameter."""
        if self.integers_fit(params):
            return
        faults, fix = [], ""
        for offset, low, high, index in self.integers:
            (value,) = _INTEGER.unpack_from(params, offset)
            if not low <= value <= high:
                kind, size = self.function.kinds[index], self.function.parameters[index][1]
                faults.append(
                    f"argument {index} is {value}; the kernel's parameter is {INTEGER_KINDS[kind]} of {size} bytes, "
                    f"which takes a Python int from {low} to {high}"
                )
                fix = fix or (
                    f"pass np.uint{8 * size}(x) if the parameter is unsigned; for larger numbers declare it long long "
                    "and pass np.int64(x)"
                )
        raise Refusal(
            Reason.LAUNCH_INVALID,
            f"launch of {self.name}: " + "; ".join(faults),
            fix=fix,
            details={"kernel": self.name, "failures": len(faults)},
        )

    def params_of(self, params: bytes) -> bytearray:
        """Returns the kernel's parameter block from the client's block."""
        if not self.moves:
            return bytearray(params)
        block = bytearray(self.kernel_params_size)
        for source, target, size in self.moves:
            block[target : target + size] = params[source : source + size]
        return block


def addresses(layout: Sequence[LayoutEntry]) -> tuple[tuple[int, int], ...]:
    """Returns (argument index, position of its offset in the client's block) of each pointer, nested ones included.

    The position is -1 for a tensor map.
    """
    return tuple((index, entry.offset if entry.size == Q.size else -1) for index, entry in _pointers(layout))


def _pointers(layout: Sequence[LayoutEntry]) -> Iterator[tuple[int, LayoutEntry]]:
    """Yields the argument index and the entry of each pointer, in the order of the layout."""
    index = -1
    end = 0
    for entry in layout:
        if not entry.pointer or entry.offset >= end:  # not nested
            index += 1
            end = entry.offset + entry.size
        if entry.pointer:
            yield index, entry


def _patches(layout: Sequence[LayoutEntry], parameters: Sequence[tuple[int, int]]) -> tuple[tuple[int, bool], ...]:
    """Returns (offset in the kernel's block, True for a tensor map) of each pointer.

    Args:
        layout: All entries of the client's layout.
        parameters: Offset and size in bytes of each parameter of the kernel.
    """
    values = split_nested(layout)[0]
    return tuple(
        (parameters[index][0] + entry.offset - values[index].offset, entry.size == TENSOR_MAP_BYTES)
        for index, entry in _pointers(layout)
    )


def attributes_of(record: Record, window_address: int = 0) -> LaunchAttributes | None:
    """Returns the attributes of a launch that has any; None for other launches.

    `window_address` is the address of the buffer of its access-policy window, if it has one.
    """
    cooperative = bool(record.flags & LaunchFlag.COOPERATIVE)
    extension = record.extension
    cluster = extension.cluster if extension is not None and any(extension.cluster) else None
    given = extension.attributes if extension is not None else None
    if given is None:
        return LaunchAttributes(cooperative, cluster) if cooperative or cluster is not None else None
    window = None
    if given.window is not None:
        _, offset, size, hit_ratio, hit, miss = given.window
        window = AccessWindow(window_address + offset, size, hit_ratio, hit, miss)
    return LaunchAttributes(cooperative, cluster, given.programmatic, given.priority, given.mem_sync_domain, window)


def with_priority(record: Record, added: int) -> Record:
    """Returns the record with `added` added to its priority, if it has one: the priority of the session's streams."""
    extension = record.extension
    if extension is None or extension.attributes is None or extension.attributes.priority is None:
        return record
    priority = max(_INT32.start, min(extension.attributes.priority + added, _INT32.stop - 1))
    attributes = extension.attributes._replace(priority=priority)
    return record._replace(extension=extension._replace(attributes=attributes))


def plan_key(data: bytes, record: Record) -> bytes:
    """Returns the bytes that determine a plan: the packed record `data` from its grid to the end of its layout.

    The key of a record with an extension has a prefix, so that a record without an extension never matches it.
    """
    layout_size = len(record.layout)
    if record.extension is None:
        return data[KEY_OFFSET : HEADER.size + layout_size]
    extended = extension_size(extension_flags(record.extension))
    return b"extended" + data[KEY_OFFSET : HEADER.size + extended + layout_size]


def check_layout(layout: Sequence[LayoutEntry], params_size: int) -> str:
    """Returns the first fault of a layout, or an empty string.

    Parameters must lie inside the block and must not overlap. A nested pointer must lie inside a value that is passed
    as bytes, and nested pointers must not overlap.
    """
    parameters, nested = split_nested(layout)
    if fault := _check_nested(parameters, nested):
        return fault
    end = 0
    for index, entry in enumerate(parameters):
        if entry.offset < end:
            return f"argument {index} at offset {entry.offset} overlaps the one before, which ends at {end}"
        if entry.pointer and entry.size not in (Q.size, TENSOR_MAP_BYTES):
            return (
                f"argument {index} is a pointer of {entry.size} bytes; an address has {Q.size}, a tensor map "
                f"{TENSOR_MAP_BYTES}"
            )
        if converted(entry) and entry.size != INTEGER_BYTES:
            return f"argument {index} is an integer of {entry.size} bytes; an integer has {INTEGER_BYTES}"
        end = entry.offset + entry.size
    if end > params_size:
        return f"the arguments end at {end}, the parameter block at {params_size}"
    return ""


def _check_nested(parameters: Sequence[LayoutEntry], nested: Sequence[Nested]) -> str:
    """Returns the first fault of the nested pointers, or an empty string."""
    ends: dict[int, int] = {}
    for index, entry in nested:
        value = parameters[index]
        if value.pointer or converted(value):
            kind = "a pointer" if value.pointer else "an integer"
            return f"a pointer at offset {entry.offset} overlaps argument {index}, which is {kind}"
        if entry.size != Q.size or entry.offset + entry.size > value.offset + value.size:
            return (
                f"a pointer of {entry.size} bytes at offset {entry.offset} does not lie inside argument {index}, which "
                f"has {value.size} bytes from {value.offset} on; an address has {Q.size}"
            )
        if entry.offset < ends.get(index, value.offset):
            return f"a pointer at offset {entry.offset} of argument {index} overlaps the one before"
        ends[index] = entry.offset + entry.size
    return ""
