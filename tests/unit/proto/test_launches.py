"""Launch records survive packing and unpacking, and invalid records are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.launches import (
    ATTRIBUTES,
    EXTENSION,
    HEADER,
    AccessWindow,
    Attributes,
    Extension,
    LaunchFlag,
    LayoutEntry,
    Record,
    RecordError,
    extension_flags,
    pack,
    pack_layout,
    unpack,
    unpack_layout,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
layouts = st.lists(
    st.builds(LayoutEntry, st.integers(0, 2**15 - 1), st.integers(0, 2**15 - 1), st.booleans(), st.booleans()),
    max_size=12,
)
u16 = st.integers(0, 2**16 - 1)
windows = st.builds(AccessWindow, u64, u64, u64, st.floats(0, 1, width=32), u16, u16)
attributes = st.builds(
    Attributes, st.booleans(), st.none() | st.integers(-(2**31), 2**31 - 1), u32, st.none() | windows
)
extensions = st.none() | st.builds(Extension, st.tuples(u32, u32, u32), u32, u64, u64, st.none() | attributes)


@st.composite
def records(draw: st.DrawFn) -> Record:
    layout = draw(layouts)
    extension = draw(extensions)
    flags = draw(st.integers(0, 2**16 - 1)) & ~(LaunchFlag.EXTENDED | LaunchFlag.ATTRIBUTES)
    return Record(
        function=draw(u64),
        stream=draw(u64),
        grid=(draw(u32), draw(u32), draw(u32)),
        block=(draw(u32), draw(u32), draw(u32)),
        shared_mem=draw(u32),
        flags=flags | (extension_flags(extension) if extension is not None else 0),
        timeout_ns=draw(u64),
        layout=pack_layout(layout),
        buffers=tuple(draw(u64) for _ in range(draw(st.integers(0, 8)))),
        params=draw(st.binary(max_size=100)),
        extension=extension,
    )


@given(st.lists(records(), max_size=5))
def test_round_trip(sent: list[Record]) -> None:
    data = b"".join(pack(record) for record in sent)
    assert len(data) % 8 == 0
    assert list(unpack(data)) == sent


def test_attributes_that_are_not_known_are_refused() -> None:
    record = Record(1, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, b"", (), b"", Extension(attributes=Attributes(True)))
    data = bytearray(pack(record))
    assert len(data) == HEADER.size + EXTENSION.size + ATTRIBUTES.size
    data[HEADER.size + EXTENSION.size] |= 16
    with pytest.raises(RecordError, match="attributes 0x10 are unknown"):
        list(unpack(bytes(data)))
    plain = bytearray(pack(record._replace(extension=None)))
    plain[52] |= LaunchFlag.ATTRIBUTES
    with pytest.raises(RecordError, match="no extension"):
        list(unpack(bytes(plain)))


@given(layouts)
def test_layout_round_trip(layout: list[LayoutEntry]) -> None:
    assert unpack_layout(pack_layout(layout)) == layout


@given(records(), st.data())
def test_a_truncated_record_is_refused(record: Record, data: st.DataObject) -> None:
    packed = pack(record)
    cut = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(RecordError):
        list(unpack(packed[:cut]))


@given(st.binary(min_size=1, max_size=300))
def test_garbage_is_refused_or_consistent(data: bytes) -> None:
    try:
        parsed = list(unpack(data))
    except RecordError:
        return
    # Padding is not kept, so the records must be equal, not all bytes.
    assert list(unpack(b"".join(pack(record) for record in parsed))) == parsed


def test_a_length_that_contradicts_the_counts_is_named() -> None:
    record = bytearray(pack(Record(1, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, b"", (), b"")))
    record[0] = HEADER.size + 8
    with pytest.raises(RecordError, match="declares 72 bytes"):
        list(unpack(bytes(record)))
