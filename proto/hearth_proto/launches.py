"""Packed launch records: the kernel launches of a `Batch`.

A record is little-endian and a multiple of 8 bytes long:

====== ======================= =====================================================================================
offset field                   meaning
====== ======================= =====================================================================================
0      u32 length              length of the whole record, bytes
4      u16 parameters          number of kernel parameters and of nested pointers
6      u16 pointers            number of those that are buffers
8      u64 function            handle
16     u64 stream              logical stream
24     u32 grid[3]             blocks
36     u32 block[3]            threads
48     u32 shared_mem          dynamic shared memory, bytes
52     u16 flags               `LaunchFlag`
54     u16 block_size          size of the parameter block, bytes
56     u64 timeout_ns          0: the device's default
64     extension               32 bytes, only with `LaunchFlag.EXTENDED`:
       u32 cluster[3]          blocks; zeros: none
       u32 iterations          number of consecutive launches
       u64 grid_buffer         handle of a buffer with the grid as three u32, instead of `grid`; 0: none
       u64 grid_offset         offset in that buffer, bytes
96     attributes              48 bytes, only with `LaunchFlag.ATTRIBUTES`, which needs `LaunchFlag.EXTENDED`:
       u32 present             `AttributeBit` of each attribute that is set
       i32 priority            in place of the stream's, lower is more urgent
       u32 mem_sync_domain     as CUlaunchMemSyncDomain
       u16 hit, miss           properties of the accesses in the window, as CUaccessProperty
       f32 hit_ratio           fraction of the accesses with the property `hit`
       u32                     zero
       u64 window_buffer       handle of the buffer of the access-policy window
       u64 window_offset       offset in that buffer, bytes
       u64 window_size         bytes
..     parameters x (u16, u16) in the kernel's order: offset in the block (top bit: the kernel only reads the buffer;
                               for a value: a signed integer of 8 bytes, converted to the parameter's type) and size
                               (top bit: a buffer's address; with size 128: a tensor map)
..     padding to 8
..     pointers x u64          handles of buffers and tensor maps, in the kernel's order
..     parameter block         laid out by C's rules; contains offsets into buffers instead of addresses
..     padding to 8
====== ======================= =====================================================================================

Other streams may concurrently read a buffer that the kernel only reads. A tensor map takes 128 bytes of the block,
which the daemon fills in.

A nested pointer is an address inside a struct that is passed by value. Its entry follows that of the struct, and its 8
bytes lie inside the struct's: `split_nested`. Null pointers have no entry; their bytes are zeros.

The daemon checks each distinct layout (offsets and sizes) once against the function's parameters. It adds each buffer's
address to the offset in its place, as a linker does with a relocation.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HEADER = struct.Struct("<IHHQQ3I3IIHHQ")
EXTENSION = struct.Struct("<4IQQ")
ATTRIBUTES = struct.Struct("<IiIHHf4xQQQ")
PARAMETER = struct.Struct("<HH")
POINTER_BIT = 0x8000
READ_ONLY_BIT = 0x8000
INTEGER_BYTES = 8
"""Size, in bytes, of an integer that the daemon converts to the parameter's type."""
TENSOR_MAP_BYTES = 128
"""sizeof(CUtensorMap), cuda.h."""
MAX_PARAMETER_BYTES = 32764
"""Size, in bytes, of the largest parameter block of CUDA 12.1 and newer on Volta and newer (CUDA C++ Programming Guide,
7.25)."""

assert HEADER.size == 64 and EXTENSION.size == 32 and ATTRIBUTES.size == 48


class LaunchFlag(enum.IntFlag):
    """Flags in the header of a launch record."""

    VALIDATE = 1  # red zones around the session's buffers
    UNCHECKED = 2  # grid, block and arguments are not checked
    COOPERATIVE = 4
    EXTENDED = 8  # an extension follows the header
    FIT = 64  # the daemon reduces a one-dimensional cooperative grid to the blocks that can be resident together
    ATTRIBUTES = 128  # attributes follow the extension


KNOWN_FLAGS = sum(LaunchFlag)


class AttributeBit(enum.IntFlag):
    """Attributes of a launch record that are set."""

    PROGRAMMATIC = 1  # the launch may start before the preceding kernel of its stream completes
    PRIORITY = 2
    MEM_SYNC_DOMAIN = 4
    WINDOW = 8


KNOWN_ATTRIBUTES = sum(AttributeBit)
ACCESS_PROPERTIES = ("normal", "streaming", "persisting")
"""Names of the properties of accesses, at their values of CUaccessProperty."""
MEM_SYNC_DOMAINS = ("default", "remote")
"""Names of the memory-sync domains, at their values of CUlaunchMemSyncDomain."""


class RecordError(ValueError):
    """Raised for bytes that are not a launch record."""


class AccessWindow(NamedTuple):
    """An access-policy window: a range of a buffer, in bytes, and the treatment of the accesses to it."""

    buffer: int
    """Handle."""
    offset: int
    size: int
    hit_ratio: float = 1.0
    hit: int = 2
    """Index in `ACCESS_PROPERTIES`."""
    miss: int = 1
    """Index in `ACCESS_PROPERTIES`."""


class Attributes(NamedTuple):
    """Attributes of a launch that do not change its result."""

    programmatic: bool = False
    """True if the launch may start before the preceding kernel of its stream completes."""
    priority: int | None = None
    """Priority in place of the stream's; None: the stream's."""
    mem_sync_domain: int = 0
    """Index in `MEM_SYNC_DOMAINS`."""
    window: AccessWindow | None = None


class Extension(NamedTuple):
    """Rarely used fields of a launch."""

    cluster: tuple[int, int, int] = (0, 0, 0)
    iterations: int = 1
    grid_buffer: int = 0
    grid_offset: int = 0
    attributes: Attributes | None = None  # sets LaunchFlag.ATTRIBUTES when packed


class LayoutEntry(NamedTuple):
    """An entry of a layout: a parameter, or a pointer inside one.

    `pointer`: a buffer's address, or a tensor map if `size` is 128. `read_only` for a value: a signed integer of 8
    bytes, which the daemon converts to the parameter's type.
    """

    offset: int
    size: int
    pointer: bool = False
    read_only: bool = False


class Nested(NamedTuple):
    """A nested pointer: the index of the kernel parameter that contains it, and its entry."""

    parameter: int
    entry: LayoutEntry


class Record(NamedTuple):
    """A launch: one packed record of a batch.

    `function` and `stream` are handles, `shared_mem` is in bytes, and `timeout_ns` 0 means the device's default.
    """

    function: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_mem: int
    flags: int
    timeout_ns: int
    layout: bytes  # PARAMETER x parameters, as packed
    buffers: tuple[int, ...]  # handles of buffers and tensor maps
    params: bytes  # the parameter block, with offsets instead of addresses
    extension: Extension | None = None  # sets LaunchFlag.EXTENDED when packed


def pack_layout(parameters: Sequence[LayoutEntry]) -> bytes:
    """Returns the packed layout of all parameters."""
    return b"".join(
        PARAMETER.pack(
            entry.offset | (READ_ONLY_BIT if entry.read_only else 0), entry.size | (POINTER_BIT if entry.pointer else 0)
        )
        for entry in parameters
    )


def unpack_layout(layout: bytes) -> list[LayoutEntry]:
    """Returns the parameters of a packed layout: the inverse of `pack_layout`."""
    return [
        LayoutEntry(
            offset & ~READ_ONLY_BIT, size & ~POINTER_BIT, bool(size & POINTER_BIT), bool(offset & READ_ONLY_BIT)
        )
        for offset, size in PARAMETER.iter_unpack(layout)
    ]


def split_nested(entries: Sequence[LayoutEntry]) -> tuple[list[LayoutEntry], list[Nested]]:
    """Separates the kernel's parameters from the nested pointers.

    A pointer that starts before the end of the parameter before it is nested in that parameter.

    Args:
        entries: All entries of a layout.

    Returns:
        The parameters, and the nested pointers, each in the order of the layout.
    """
    parameters: list[LayoutEntry] = []
    nested: list[Nested] = []
    end = 0
    for entry in entries:
        if entry.pointer and entry.offset < end:
            nested.append(Nested(len(parameters) - 1, entry))
        else:
            parameters.append(entry)
            end = entry.offset + entry.size
    return parameters, nested


def padded(size: int) -> int:
    """Returns `size` rounded up to a multiple of 8."""
    return (size + 7) & ~7


def extension_flags(extension: Extension) -> int:
    """Returns the flags of a record with this extension."""
    return int(LaunchFlag.EXTENDED) | (int(LaunchFlag.ATTRIBUTES) if extension.attributes is not None else 0)


def pack_extension(extension: Extension) -> bytes:
    """Packs an extension with its attributes."""
    cluster, iterations, grid_buffer, grid_offset, attributes = extension
    packed = EXTENSION.pack(*cluster, iterations, grid_buffer, grid_offset)
    if attributes is None:
        return packed
    window = attributes.window or AccessWindow(0, 0, 0, 0.0, 0, 0)
    present = (
        (AttributeBit.PROGRAMMATIC if attributes.programmatic else 0)
        | (AttributeBit.PRIORITY if attributes.priority is not None else 0)
        | (AttributeBit.MEM_SYNC_DOMAIN if attributes.mem_sync_domain else 0)
        | (AttributeBit.WINDOW if attributes.window is not None else 0)
    )
    return packed + ATTRIBUTES.pack(
        present, attributes.priority or 0, attributes.mem_sync_domain, window.hit, window.miss, window.hit_ratio,
        window.buffer, window.offset, window.size,
    )  # fmt: skip


def _unpack_extension(data: bytes | memoryview, at: int, has_attributes: bool) -> Extension:
    """Returns the extension at offset `at`. Raises `RecordError` for unknown attributes."""
    cx, cy, cz, iterations, grid_buffer, grid_offset = EXTENSION.unpack_from(data, at)
    if not has_attributes:
        return Extension((cx, cy, cz), iterations, grid_buffer, grid_offset)
    present, priority, domain, hit, miss, ratio, buffer, offset, size = ATTRIBUTES.unpack_from(
        data, at + EXTENSION.size
    )
    if present & ~KNOWN_ATTRIBUTES:
        raise RecordError(f"launch attributes {present & ~KNOWN_ATTRIBUTES:#x} are unknown")
    attributes = Attributes(
        bool(present & AttributeBit.PROGRAMMATIC),
        priority if present & AttributeBit.PRIORITY else None,
        domain if present & AttributeBit.MEM_SYNC_DOMAIN else 0,
        AccessWindow(buffer, offset, size, ratio, hit, miss) if present & AttributeBit.WINDOW else None,
    )
    return Extension((cx, cy, cz), iterations, grid_buffer, grid_offset, attributes)


def extension_size(flags: int) -> int:
    """Returns the size in bytes of the extension and the attributes of a record with these flags."""
    if not flags & LaunchFlag.EXTENDED:
        return 0
    return EXTENSION.size + (ATTRIBUTES.size if flags & LaunchFlag.ATTRIBUTES else 0)


def pack(record: Record) -> bytes:
    """Packs a record as bytes."""
    parameters = len(record.layout) // PARAMETER.size
    pointers = len(record.buffers)
    flags = record.flags & ~(LaunchFlag.EXTENDED | LaunchFlag.ATTRIBUTES)
    extension = b""
    if record.extension is not None:
        flags |= extension_flags(record.extension)
        extension = pack_extension(record.extension)
    head = HEADER.size + len(extension) + padded(len(record.layout)) + 8 * pointers
    length = head + padded(len(record.params))
    return b"".join(
        (
            HEADER.pack(
                length, parameters, pointers, record.function, record.stream, *record.grid, *record.block,
                record.shared_mem, flags, len(record.params), record.timeout_ns,
            ),
            extension,
            record.layout.ljust(padded(len(record.layout)), b"\0"),
            struct.pack(f"<{pointers}Q", *record.buffers),
            record.params.ljust(padded(len(record.params)), b"\0"),
        )
    )  # fmt: skip


def unpack(data: bytes | memoryview) -> Iterator[Record]:
    """Yields the records of a batch's `launches` field. Raises `RecordError` at the first malformed one."""
    position = 0
    size = len(data)
    while position < size:
        if size - position < HEADER.size:
            raise RecordError(
                f"{size - position} bytes are left at offset {position}, but a launch record has at least 64"
            )
        (length, parameters, pointers, function, stream, gx, gy, gz, bx, by, bz, shared_mem, flags, block_size,
         timeout_ns) = HEADER.unpack_from(data, position)  # fmt: skip
        layout_at = position + HEADER.size + extension_size(flags)
        layout_size = PARAMETER.size * parameters
        buffers_at = layout_at + padded(layout_size)
        params_at = buffers_at + 8 * pointers
        if length != params_at + padded(block_size) - position or position + length > size:
            raise RecordError(
                f"the record at offset {position} declares {length} bytes; its {parameters} parameters, "
                f"{pointers} pointers and block of {block_size} bytes take "
                f"{params_at + padded(block_size) - position}, and {size - position} are left"
            )
        extension = None
        if flags & LaunchFlag.ATTRIBUTES and not flags & LaunchFlag.EXTENDED:
            raise RecordError(f"the record at offset {position} has attributes and no extension")
        if flags & LaunchFlag.EXTENDED:
            extension = _unpack_extension(data, position + HEADER.size, bool(flags & LaunchFlag.ATTRIBUTES))
        yield Record(
            function,
            stream,
            (gx, gy, gz),
            (bx, by, bz),
            shared_mem,
            flags,
            timeout_ns,
            bytes(data[layout_at : layout_at + layout_size]),
            struct.unpack_from(f"<{pointers}Q", data, buffers_at),
            bytes(data[params_at : params_at + block_size]),
            extension,
        )
        position += length
