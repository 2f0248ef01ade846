"""Buffer copies: parts of rows arrive where they belong, and staging memory of a refused copy is released."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearthd.device import context
from hearthd.device.session.buffer import Buffer
from hearthd.device.transfers.buffer_copy import BufferCopy
from tests.support.compiled import skip_if_compiled

REFUSAL = Refusal(Reason.OUT_OF_MEMORY, "no")


@pytest.fixture(scope="module", autouse=True)
def sources() -> None:
    """Compiled code accepts no fakes of its parts."""
    skip_if_compiled(context)


class Host:
    """Host memory, page-locked or not."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))


class Server:
    """The memory of a device, which copies immediately; `refuses` makes every copy fail."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.refuses = False

    def upload(self, destination: int, source: Host, offset: int, size: int, stream: Any) -> None:
        self.upload_rows(destination, size, source, offset, size, 1, stream)

    def upload_rows(
        self, destination: int, pitch: int, source: Host, offset: int, width: int, rows: int, stream: Any
    ) -> None:
        self.write_now(destination, pitch, source.view[offset : offset + width * rows], width, rows)

    def download(self, destination: Host, offset: int, source: int, size: int, stream: Any) -> None:
        self.download_rows(destination, offset, source, size, size, 1, stream)

    def download_rows(
        self, destination: Host, offset: int, source: int, pitch: int, width: int, rows: int, stream: Any
    ) -> None:
        self.read_now(destination.view[offset : offset + width * rows], source, pitch, width, rows)

    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        if self.refuses:
            raise REFUSAL
        for row in range(rows):
            start = destination + row * pitch
            self.memory[start : start + width] = data[row * width : (row + 1) * width]

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        if self.refuses:
            raise REFUSAL
        for row in range(rows):
            start = source + row * pitch
            into[row * width : (row + 1) * width] = self.memory[start : start + width]


class Staging:
    """Staging memory: `room` False makes a copy wait, `locks` False makes it do without."""

    def __init__(self) -> None:
        self.room = self.locks = True
        self.lent: list[Host] = []

    def find(self, size: int, session: Any) -> Host | None:
        if not (self.room and self.locks):
            return None
        self.lent.append(Host(size))
        return self.lent[-1]

    def refusal(self, size: int) -> Refusal | None:
        return None if self.locks else REFUSAL

    def drop(self, track: Any, host: Host) -> None:
        self.lent.remove(host)


class Case:
    """A copy of rows, and the parts of the device process that it uses."""

    def __init__(self, rows: RowLayout) -> None:
        self.server, self.staging = Server(rows.end + 9), Staging()
        self.order: list[str] = []
        self.reached: list[Any] = []
        tracks = SimpleNamespace(
            claim_position=lambda track, writes, reads=(): self.order.append("write" if writes else "read"),
            on_complete=lambda track, callback: self.reached.append(callback),
            pending_outcomes=SimpleNamespace(when_settled=lambda usage, callback: callback),
        )
        self.counts = SimpleNamespace(
            host_to_device_bytes=0, host_to_device_operations=0, device_to_host_bytes=0, device_to_host_operations=0
        )
        device: Any = SimpleNamespace(
            server=self.server, staging=self.staging, tracks=tracks, telemetry=self.counts,
            begin=lambda stream, size: self.order.append("begin"), kick=lambda session: None,
        )  # fmt: skip
        track = SimpleNamespace(stream=None, full=False)
        origin: Any = SimpleNamespace(stream=SimpleNamespace(track=track), session=None)
        self.copy = BufferCopy(device, origin, Buffer(1, rows.end), rows)
        self.copy.before = lambda: self.order.append("before")
        self.copy.address = rows.offset


def layouts() -> st.SearchStrategy[RowLayout]:
    ranges = st.tuples(st.integers(0, 5), st.integers(1, 40)).map(lambda each: RowLayout(*each))
    pitched = st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(2, 6), st.integers(0, 4))
    return ranges | pitched.map(lambda each: RowLayout(each[0], each[1], each[2], each[1] + each[3]))


def expected(rows: RowLayout, data: bytes, size: int) -> bytearray:
    """Returns the memory of a device after `data` was written to the rows."""
    memory, pitch = bytearray(size), rows.pitch or rows.width
    for row in range(rows.rows):
        start = rows.offset + row * pitch
        memory[start : start + rows.width] = data[row * rows.width : (row + 1) * rows.width]
    return memory


@given(layouts(), st.integers(1, 17), st.integers(0, 3))
def test_parts_in_any_order_make_the_whole_copy(rows: RowLayout, part: int, start: int) -> None:
    case, size = Case(rows), rows.size
    data, host, back = bytes(range(1, size + 1)), Host(size + start), Host(size + start)
    host.view[start:] = data
    parts = [(at, min(part, size - at)) for at in range(0, size, part)]
    for at, count in reversed(parts):
        case.copy.upload(host, start + at, at, count)  # type: ignore[arg-type]
    assert case.server.memory == expected(rows, data, len(case.server.memory))
    for at, count in reversed(parts):
        case.copy.download(back, start + at, at, count)  # type: ignore[arg-type]
    assert bytes(back.view) == bytes(start) + data
    assert case.order == ["before", "write", "begin"] * len(parts) + ["before", "read", "begin"] * len(parts)
    assert case.counts.host_to_device_bytes == case.counts.device_to_host_bytes == size
    assert case.counts.host_to_device_operations == case.counts.device_to_host_operations == len(parts)


@pytest.mark.parametrize("rows", [RowLayout(3, 20), RowLayout(1, 5, 4, 7)], ids=["range", "rows"])
def test_refused_copies_release_their_staging_memory(rows: RowLayout) -> None:
    case = Case(rows)
    case.server.refuses = True
    with pytest.raises(Refusal):
        case.copy.put(0, bytes(20))
    assert not case.staging.lent
    host = case.copy.find(20)
    assert host is not None
    with pytest.raises(Refusal):
        case.copy.download_staged(host, 0, 20)
    assert not case.staging.lent
    case.server.refuses = False
    assert case.copy.put(0, bytes(20)) and not case.staging.lent
    host = case.copy.find(20)
    assert host is not None
    case.copy.download_staged(host, 0, 20)
    assert case.staging.lent == [host]


def test_copy_waits_for_staging_memory_while_the_host_has_some() -> None:
    case = Case(RowLayout(0, 4))
    case.staging.room = False
    assert not case.copy.put(0, b"abcd") and not case.copy.waits and not case.order
    case.staging.room = True
    assert case.copy.put(0, b"abcd")
    assert case.server.memory[:4] == b"abcd"


def test_copy_without_page_locked_memory_waits_for_its_stream_only() -> None:
    """The part keeps its position in the stream, even if staging memory becomes free meanwhile."""
    case = Case(RowLayout(2, 4))
    case.staging.locks = False
    assert not case.copy.put(0, b"abcd") and not case.copy.put(0, b"abcd")
    assert case.copy.waits and case.order == ["write", "begin"], "it takes one position"
    case.staging.locks = True
    assert case.copy.find(4) is None and case.copy.without(4)
    assert not case.copy.put(0, b"abcd") and not any(case.server.memory)
    case.reached.pop()()
    assert case.copy.put(0, b"abcd") and not case.copy.waits
    assert case.server.memory[2:6] == b"abcd" and case.copy.find(4) is not None
