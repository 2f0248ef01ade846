"""Reservations of memory: their holders, their release, and the work that a free waits for before another session
gets the memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuEvent, CpuStream
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.session.session import DeviceSession
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Command, Rig

T = TypeVar("T")


class Watched(CpuServer):
    """Records which streams were made to wait, and which sizes were freed."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.waits: list[CpuStream] = []
        self.freed: list[int] = []
        self.trims: list[int] = []
        """Bytes in use at each trim of the pool."""

    def stream(self, number: int) -> CpuStream:
        return self.streams[number]

    def wait(self, stream: CpuStream, event: CpuEvent) -> None:
        self.waits.append(stream)
        super().wait(stream, event)

    def free(self, memory: Any, stream: CpuStream) -> None:
        self.freed.append(memory.size)
        super().free(memory, stream)

    def trim(self) -> None:
        self.trims.append(self.memory_held()[0])
        super().trim()


@pytest.fixture
def rig() -> Iterator[Rig[Watched]]:
    device_rig = Rig(DeviceSpec(0, "cpu", 0, memory_limit=1 << 20), Watched)
    yield device_rig
    device_rig.stop()


def inside(rig: Rig[Watched], task: Callable[[MemoryCommands, DeviceSession], T]) -> T:
    """Runs `task` on the device-handle thread, where graphs use these methods, and returns its result."""
    answers: list[T] = []
    done = threading.Event()

    def run() -> None:
        executor = rig.process.executor
        session = executor.session(1)
        assert session is not None
        answers.append(task(executor.memory, session))
        done.set()

    rig.process.loop.post(run)
    assert done.wait(30)
    return answers[0]


@contextlib.contextmanager
def busy(rig: Rig[Watched], number: int) -> Iterator[None]:
    """Holds the work up that is submitted to a stream in the context."""
    gate = threading.Event()
    rig.server.stream(number).submit(gate.wait)
    try:
        yield
    finally:
        gate.set()


def usage(rig: Rig[Watched]) -> c.MemoryUsageResult:
    return rig.call(memory_usage=c.MemoryUsage()).memory_usage


def test_held_memory_outlives_its_handle(rig: Rig[Watched]) -> None:
    rig.call(allocate=c.Allocate(buffer=1, size=1000))
    buffer = inside(rig, lambda memory, session: session.buffers.find(1))
    inside(rig, lambda memory, session: (memory.hold(buffer), memory.hold(buffer)))
    rig.call(free=c.Free(buffers=[1]))
    assert rig.call(read=c.Read(buffer=1, size=1)).HasField("error"), "the handle is invalid"
    assert (usage(rig).allocations, usage(rig).bytes_in_use) == (1, 1000)
    inside(rig, lambda memory, session: memory.unhold(session, buffer))
    assert usage(rig).allocations == 1 and rig.server.freed == []
    inside(rig, lambda memory, session: memory.unhold(session, buffer))
    assert (usage(rig).allocations, usage(rig).bytes_in_use) == (0, 0) and rig.server.freed == [1000]


def test_unheld_memory_is_freed_with_its_handle(rig: Rig[Watched]) -> None:
    rig.call(allocate=c.Allocate(buffer=1, size=1000))
    buffer = inside(rig, lambda memory, session: session.buffers.find(1))
    inside(rig, lambda memory, session: (memory.hold(buffer), memory.unhold(session, buffer)))
    assert usage(rig).allocations == 1 and rig.server.freed == []
    rig.call(free=c.Free(buffers=[1]))
    assert usage(rig).allocations == 0 and rig.server.freed == [1000]


def test_a_session_that_ends_while_something_is_held(rig: Rig[Watched]) -> None:
    """The holder releases the memory after the session has ended; the memory is freed although it was persistent."""
    rig.call(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_PERSISTENT))
    rig.call(allocate=c.Allocate(buffer=1, size=1000))
    session, buffer = inside(rig, lambda memory, session: (session, session.buffers.find(1)))
    inside(rig, lambda memory, _: memory.hold(buffer))
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    assert rig.server.freed == []
    rig.send(Kind.OPEN, b"{}", channel=1)
    inside(rig, lambda memory, _: memory.unhold(session, buffer))
    assert rig.server.freed == [1000] and rig.gauges()["memory_reserved_bytes"] == 0


def test_frees_that_wait_when_a_session_ends_are_not_forgotten(rig: Rig[Watched]) -> None:
    """The free waits for a write whose bytes never arrive."""
    rig.batch(
        Command(allocate=c.Allocate(buffer=1, size=1000)),
        Command(write=c.Write(buffer=1, size=1000, transfer=9)),
        Command(free=c.Free(buffers=[1])),
    )
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    assert rig.server.freed == [1000]
    rig.send(Kind.OPEN, b"{}", channel=1)
    assert rig.gauges()["memory_reserved_bytes"] == 0


def test_other_streams_are_ordered_after_an_allocation(rig: Rig[Watched]) -> None:
    """Stream 0 gets the memory that it has freed, and may still be using it; stream 1 must wait for that use."""
    rig.call(create_stream=c.CreateStream(stream=1))
    with busy(rig, 0):
        rig.call(allocate=c.Allocate(buffer=1, size=1000))
        rig.call(write=c.Write(buffer=1, data=bytes(1000)))
        rig.call(free=c.Free(buffers=[1]))
        rig.call(allocate=c.Allocate(buffer=2, size=1000))
        before = len(rig.server.waits)
        rig.call(stream=1, write=c.Write(buffer=2, data=bytes(1000)))
        assert rig.server.waits[before:] == [rig.server.stream(1)]
        rig.call(stream=1, write=c.Write(buffer=2, data=bytes(1000)))
        assert len(rig.server.waits) == before + 1, "once"


def test_next_owner_is_ordered_after_the_last_use_of_freed_memory(rig: Rig[Watched]) -> None:
    """Buffer 1 belongs to stream 0 and was last used by stream 1. Stream 2, which is already ordered after stream 0,
    gets the buffer's memory from stream 0."""
    for number in (1, 2):
        rig.call(create_stream=c.CreateStream(stream=number))
    rig.call(allocate=c.Allocate(buffer=1, size=1000))
    rig.call(allocate=c.Allocate(buffer=3, size=8))
    with busy(rig, 0):
        rig.call(stream=2, write=c.Write(buffer=3, data=bytes(8)))
        rig.call(stream=1, write=c.Write(buffer=1, data=bytes(1000)))
        rig.call(free=c.Free(buffers=[1]))
        rig.call(allocate=c.Allocate(buffer=2, size=1000))
        before = len(rig.server.waits)
        rig.call(stream=2, write=c.Write(buffer=2, data=bytes(1000)))
        assert rig.server.waits[before:] == [rig.server.stream(2)]


def test_a_persistent_block_is_settled_on_the_stream_that_gets_it(rig: Rig[Watched]) -> None:
    rig.call(create_stream=c.CreateStream(stream=1))
    rig.call(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_PERSISTENT))
    with busy(rig, 0):
        rig.call(allocate=c.Allocate(buffer=1, size=1000))
        rig.call(write=c.Write(buffer=1, data=bytes(1000)))
        rig.call(free=c.Free(buffers=[1]))
        before = len(rig.server.waits)
        rig.call(stream=1, allocate=c.Allocate(buffer=2, size=1001))
        assert rig.server.waits[before:] == [rig.server.stream(1)] and rig.server.freed == []
    assert usage(rig).bytes_persistent == 0
    rig.call(free=c.Free(buffers=[2]))
    rig.call(memory_cleanup=c.MemoryCleanup())
    assert rig.server.freed == [1000]


def test_cleanup_trims_the_pool_after_releasing_persistent_blocks(rig: Rig[Watched]) -> None:
    rig.call(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_PERSISTENT))
    rig.call(allocate=c.Allocate(buffer=1, size=1 << 16))
    rig.call(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_AUTO))
    rig.call(allocate=c.Allocate(buffer=2, size=512))
    rig.call(free=c.Free(buffers=[1]))
    assert usage(rig).bytes_persistent == 1 << 16 and rig.server.trims == []
    assert not rig.call(memory_cleanup=c.MemoryCleanup()).HasField("error")
    assert rig.server.trims == [512] and usage(rig).bytes_persistent == 0
