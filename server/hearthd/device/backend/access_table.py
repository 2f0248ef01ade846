"""Access table: memory that gives an instrumented kernel the guarded buffers, and to which it reports stray accesses.

A module that was compiled with `-fsanitize=address` for a GPU has the table as a global variable. Its kernels check
each address that they access. They ignore addresses outside of all guarded spans: memory that is not a buffer argument.
The table holds the header, the spans, and the records that the kernels write. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

SYMBOL = "__hearth_access_table"
"""Name of the variable in the module."""

MAX_SPANS = 256
MAX_RECORDS = 64

SPANS = 64
"""Offset of the spans. The header before them: number of spans (u64), and number of accesses found (u32)."""
SPAN_BYTES = 32
RECORDS = SPANS + MAX_SPANS * SPAN_BYTES
"""Offset of the records."""
RECORD_BYTES = 32
BYTES = RECORDS + MAX_RECORDS * RECORD_BYTES

UNKNOWN, READ, WRITE = 0, 1, 2
"""Kinds of accesses in records. `UNKNOWN`: an atomic operation, which reads and writes."""

_HEADER = struct.Struct("<QI")
_SPAN = struct.Struct("<QQQQ")
_RECORD = struct.Struct("<QIIII")


class Span(NamedTuple):
    """Device addresses of a guarded span, and of the array in it."""

    low: int
    begin: int
    end: int
    high: int


class AccessRecord(NamedTuple):
    """An access outside of an array."""

    span: int
    """Index of the span."""
    offset: int
    """Offset of the first byte outside of the array from the array's start; negative: before it."""
    kind: int
    block: tuple[int, int, int]


def encode(spans: Sequence[Span]) -> bytes:
    """Returns the table before a launch: the spans, and no records."""
    table = bytearray(BYTES)
    _HEADER.pack_into(table, 0, len(spans), 0)
    for index, span in enumerate(spans):
        _SPAN.pack_into(table, SPANS + index * SPAN_BYTES, *span)
    return bytes(table)


def decode(table: bytes | memoryview, spans: Sequence[Span]) -> list[AccessRecord]:
    """Returns the accesses in the table after a launch: the nearest one of each kind and page of each array."""
    _, found = _HEADER.unpack_from(table, 0)
    nearest: dict[tuple[int, int, int], AccessRecord] = {}
    for index in range(min(found, MAX_RECORDS)):
        address, kind, *block = _RECORD.unpack_from(table, RECORDS + index * RECORD_BYTES)
        number = next((number for number, span in enumerate(spans) if span.low <= address < span.high), None)
        if number is None:
            continue
        span = spans[number]
        offset = span.end - span.begin if span.begin <= address < span.end else address - span.begin
        record = AccessRecord(number, offset, kind & 0xFF, (block[0], block[1], block[2]))
        key = number, record.kind, record.offset >> 12
        if key not in nearest or abs(record.offset) < abs(nearest[key].offset):
            nearest[key] = record
    return sorted(nearest.values())
