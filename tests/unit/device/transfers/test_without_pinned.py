"""Copies on a host that locks no memory: directly from and to the messages, in order, without delaying other work."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.host_memory import Host, LockingServer
from tests.support.device.rig import Command, Rig

MIB = 1 << 20
Start = Callable[[int], Rig[LockingServer]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts device processes on a host that locks `lockable` bytes."""
    rigs: list[Rig[LockingServer]] = []

    def begin(lockable: int) -> Rig[LockingServer]:
        spec = DeviceSpec(0, "cpu", 0, memory_limit=64 * MIB, chunk_bytes=300_000)
        rigs.append(Rig(spec, partial(LockingServer, host=Host(lockable))))
        return rigs[-1]

    yield begin
    for rig in rigs:
        rig.close()
        assert rig.server.pool.in_use == 0


def ok(result: c.Result) -> c.Result:
    assert not result.HasField("error"), result.error
    return result


def test_every_copy_without_page_locked_memory(start: Start) -> None:
    rig = start(0)
    noise = random.Random(1).randbytes
    size = 2 * MIB + 5
    ok(rig.call(allocate=c.Allocate(buffer=1, size=size)))
    data = noise(size)
    write = rig.start(write=c.Write(buffer=1, size=size, transfer=7))
    rig.upload(7, data, 250_001)
    ok(rig.answer(write))
    read = rig.start(read=c.Read(buffer=1, size=size, transfer=8))
    assert rig.download(8) == data and ok(rig.answer(read)).read.size == size
    small = noise(1000)
    ok(rig.call(write=c.Write(buffer=1, offset=99, data=small)))
    assert ok(rig.call(read=c.Read(buffer=1, offset=99, size=1000))).read.data == small
    rows = c.Rows(width=1001, rows=901, pitch=2003)
    picture = noise(rows.width * rows.rows)
    write = rig.start(write=c.Write(buffer=1, offset=3, size=len(picture), transfer=9, rows=rows))
    rig.upload(9, picture, 77_777)
    ok(rig.answer(write))
    read = rig.start(read=c.Read(buffer=1, offset=3, size=len(picture), transfer=10, rows=rows))
    assert rig.download(10) == picture
    ok(rig.answer(read))
    few = c.Rows(width=10, rows=3, pitch=2003)
    corner = ok(rig.call(read=c.Read(buffer=1, offset=3, size=30, rows=few))).read.data
    assert corner == b"".join(picture[row * 1001 : row * 1001 + 10] for row in range(3))
    between = ok(rig.call(read=c.Read(buffer=1, offset=3 + 1001, size=1002))).read.data
    full = bytearray(data)
    full[99:1099] = small
    assert between == full[3 + 1001 : 3 + 2003], "nothing was written between the rows"
    assert rig.server.direct > 20


def test_copies_keep_their_order_in_the_stream(start: Start) -> None:
    rig = start(0)
    rig.batch(
        Command(allocate=c.Allocate(buffer=1, size=8)),
        Command(allocate=c.Allocate(buffer=2, size=24)),
        *(
            command
            for value in range(3)
            for command in (
                Command(write=c.Write(buffer=1, data=bytes([value]) * 8)),
                Command(copy=c.Copy(destination=2, destination_offset=8 * value, source=1, size=8)),
            )
        ),
    )
    assert ok(rig.call(read=c.Read(buffer=2, size=24))).read.data == b"\0" * 8 + b"\1" * 8 + b"\2" * 8


def test_a_busy_stream_delays_no_other(start: Start) -> None:
    rig = start(0)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=8)))
    ok(rig.call(create_stream=c.CreateStream(stream=1)))
    ok(rig.call(stream=1, allocate=c.Allocate(buffer=2, size=8)))
    gate = threading.Event()
    rig.server.stream(0).submit(gate.wait)
    write = rig.start(write=c.Write(buffer=1, data=b"12345678"))
    read = rig.start(read=c.Read(buffer=1, size=8))
    ok(rig.call(stream=1, write=c.Write(buffer=2, data=b"abcdefgh")))
    assert ok(rig.call(stream=1, read=c.Read(buffer=2, size=8))).read.data == b"abcdefgh"
    gate.set()
    ok(rig.answer(write))
    assert ok(rig.answer(read)).read.data == b"12345678"


def test_lockable_memory_is_used_and_other_copies_are_direct(start: Start) -> None:
    """Reads three times as much as the host has locked, all after work that has not ended."""
    rig = start(MIB)
    size = 100_000
    contents = [random.Random(number).randbytes(size) for number in range(30)]
    for number, data in enumerate(contents, 1):
        ok(rig.call(allocate=c.Allocate(buffer=number, size=size)))
        ok(rig.call(write=c.Write(buffer=number, data=data)))
        ok(rig.call(sync=c.Sync()))  # so that its staging memory is free again
    assert rig.server.direct == 0
    gate = threading.Event()
    rig.server.stream(0).submit(gate.wait)
    reads = [rig.start(read=c.Read(buffer=number, size=size)) for number in range(1, 31)]
    while rig.server.pool.refusal(size) is None:  # a thread asks the host, which may take any time
        time.sleep(1e-3)
    usage = ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_pinned == MIB and 0 < usage.bytes_pinned_in_use <= MIB
    gate.set()
    for read, data in zip(reads, contents, strict=True):
        assert ok(rig.answer(read)).read.data == data
    assert rig.server.direct > 0
    assert ok(rig.call(memory_usage=c.MemoryUsage())).memory_usage.bytes_pinned_in_use == 0


def test_session_that_ends_during_copies(start: Start) -> None:
    rig = start(0)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=8)))
    gate = threading.Event()
    rig.server.stream(0).submit(gate.wait)
    write = rig.start(write=c.Write(buffer=1, data=b"12345678"))
    rig.send(Kind.CLOSE, channel=1)
    assert from_status(rig.answer(write).error).reason == Reason.SESSION_EXPIRED
    gate.set()
    rig.until(Kind.CLOSED)
    assert rig.server.direct == 0
    rig.send(Kind.OPEN, b"{}", channel=1)
    assert rig.gauges()["memory_reserved_bytes"] == 0


def test_a_copy_that_the_driver_refuses_releases_its_memory(start: Start) -> None:
    rig = start(8 * MIB)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=500_000)))
    for command in (
        {"write": c.Write(buffer=1, data=bytes(100))},
        {"write": c.Write(buffer=1, data=bytes(200_000))},
        {"read": c.Read(buffer=1, size=100)},
        {"read": c.Read(buffer=1, size=200_000)},
    ):
        rig.server.refuse = 1
        assert "refuses" in rig.call(**command).error.message
        ok(rig.call(sync=c.Sync()))
        assert rig.gauges()["staging_bytes"] == 0 and rig.server.pool.in_use == 0
        ok(rig.call(**command))
    rig.server.refuse = 1
    write = rig.start(write=c.Write(buffer=1, size=500_000, transfer=3))
    rig.upload(3, bytes(500_000), 100_000)
    assert "refuses" in rig.answer(write).error.message
    ok(rig.call(sync=c.Sync()))
    assert rig.gauges()["staging_bytes"] == 0


def test_a_thousand_copies_lock_no_more_memory_than_the_first(start: Start) -> None:
    rig = start(64 * MIB)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=1 << 16)))
    locked = None
    for number in range(500):
        data = bytes([number % 251]) * (64 << number % 8)
        ok(rig.call(write=c.Write(buffer=1, data=data)))
        assert ok(rig.call(read=c.Read(buffer=1, size=len(data)))).read.data == data
        locked = locked or list(rig.server.host.asked)
    assert rig.server.host.asked == locked


def test_small_writes_share_their_events(start: Start) -> None:
    rig = start(8 * MIB)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=64)))
    ok(rig.call(sync=c.Sync()))
    before = rig.server.events
    rig.batch(*(Command(write=c.Write(buffer=1, data=bytes([number % 251]) * 64)) for number in range(512)))
    assert ok(rig.call(read=c.Read(buffer=1, size=64))).read.data == bytes([511 % 251]) * 64
    ok(rig.call(sync=c.Sync()))
    # One event for 64 writes, one for the window of 128 commands, and one for each loop iteration, not one for each
    # write.
    assert rig.server.events - before <= 512 // 64 + 512 // 128 + 8
    assert rig.server.pool.in_use == 0
