"""The access table: spans that kernels read, and records that they write."""

from __future__ import annotations

import struct

from hearthd.device.backend import access_table
from hearthd.device.backend.access_table import AccessRecord, Span

SPANS = [Span(1000, 2000, 3000, 4000), Span(10_000, 11_000, 11_000, 12_000)]


def table(*records: tuple[int, int], found: int | None = None) -> bytes:
    """Returns a table in which kernels of block (1, 2, 3) have written these (address, kind)."""
    made = bytearray(access_table.encode(SPANS))
    struct.pack_into("<I", made, 8, len(records) if found is None else found)
    for index, (address, kind) in enumerate(records[: access_table.MAX_RECORDS]):
        at = access_table.RECORDS + index * access_table.RECORD_BYTES
        struct.pack_into("<QIIII", made, at, address, kind | 4 << 8, 1, 2, 3)
    return bytes(made)


def test_spans_are_in_the_table() -> None:
    made = table()
    assert len(made) == access_table.BYTES and struct.unpack_from("<QI", made) == (2, 0)
    assert struct.unpack_from("<4Q", made, access_table.SPANS + access_table.SPAN_BYTES) == SPANS[1]
    assert access_table.decode(made, SPANS) == []


def test_records_are_relative_to_their_array() -> None:
    made = table((3000, access_table.READ), (1999, access_table.WRITE), (11_500, access_table.UNKNOWN))
    assert access_table.decode(made, SPANS) == [
        AccessRecord(0, -1, access_table.WRITE, (1, 2, 3)),
        AccessRecord(0, 1000, access_table.READ, (1, 2, 3)),
        AccessRecord(1, 500, access_table.UNKNOWN, (1, 2, 3)),
    ]


def test_access_that_begins_inside_is_reported_at_the_end_of_the_array() -> None:
    assert [record.offset for record in access_table.decode(table((2990, access_table.READ)), SPANS)] == [1000]


def test_one_access_of_each_kind_and_page_is_reported() -> None:
    made = table(*((3000 + 4 * index, access_table.READ) for index in reversed(range(50))), (5, access_table.READ))
    assert [record.offset for record in access_table.decode(made, SPANS)] == [1000]


def test_more_accesses_than_records() -> None:
    made = table(*((3000, access_table.READ) for _ in range(access_table.MAX_RECORDS)), found=10**6)
    assert len(access_table.decode(made, SPANS)) == 1
