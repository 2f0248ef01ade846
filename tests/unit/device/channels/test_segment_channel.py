"""Shared memory in a device process whose host locks and unlocks pages as CUDA does: in parts, slowly, and only while
idle."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto import descriptors
from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import status_pb2
from hearthd.device.channels import segment_channel
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.flows.segment import Segment
from hearthd.device.flows.segment_policy import PART
from hearthd.device.transfers.registered import DOWN, UP
from hearthd.device.transfers.segment_mapper import PAUSE_S
from hearthd.device.transfers.segments import RETIRED
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.local_broker import device_process
from tests.support.device.rig import Command, Rig, compiled
from tests.support.device.segment_client import Client, hand_over

MIB = 1 << 20
SOURCE = b'extern "C" __global__ void add_one(int* x) { *x += 1; }'


class PageLocking(CpuServer):
    """Locks at most `lockable` bytes; unlocks only while no kernel runs. `gate` lets kernels end, `slow` lets locking
    continue."""

    loading_waits = True

    def __init__(self, spec: DeviceSpec, lockable: int) -> None:
        super().__init__(spec)
        self.lockable = lockable
        self.locked: dict[int, int] = {}
        self.locks: list[tuple[int, str]] = []
        self.locked_between: list[tuple[float, float]] = []
        """Start and end of each call."""
        self.gate, self.slow = threading.Event(), threading.Event()
        self.gate.set()
        self.slow.set()
        self.running = 0
        self.takes = 0.0
        """Duration of a kernel, in seconds."""
        self.violations: list[str] = []
        self.refuse_at = 0
        """Number of the copy, counted from now on, that the driver refuses."""
        self.direct = 0
        self._guard = threading.Lock()

    def register_host(self, address: int, size: int) -> None:
        began = time.monotonic()
        assert self.slow.wait(30)
        self.locks.append((size, threading.current_thread().name))
        self.locked_between.append((began, time.monotonic()))
        if size > self.lockable:
            raise MemoryError(f"cannot lock {size} bytes")
        self.lockable -= size
        self.locked[address] = size

    def unregister_host(self, address: int, size: int) -> None:
        if self.running:
            self.violations.append("unlocked during a kernel")
        if self.locked.pop(address, 0) != size:
            self.violations.append("unlocked something else than was locked")
        self.lockable += size

    def stream(self, number: int) -> CpuStream:
        return self.streams[number]

    def launch(self, function: Any, grid: Any, block: Any, shared: int, stream: Any, *rest: Any) -> None:
        with self._guard:
            self.running += 1
        stream.submit(self.gate.wait)
        stream.submit(lambda: time.sleep(self.takes))
        super().launch(function, grid, block, shared, stream, *rest)
        stream.submit(self._ended)

    def _ended(self) -> None:
        with self._guard:
            self.running -= 1

    def _drive(self, host: Any, offset: int, size: int) -> None:
        if self.refuse_at:
            self.refuse_at -= 1
            if not self.refuse_at:
                raise Refusal(Reason.INTERNAL, "the driver refuses this copy", fix="none")
        if isinstance(host, Segment):
            start = host.address + offset
            if not any(at <= start and start + size <= at + length for at, length in self.locked.items()):
                self.violations.append(f"a copy of {size} bytes is not within what one call has locked")

    def upload(self, destination: int, source: Any, offset: int, size: int, stream: Any) -> None:
        self._drive(source, offset, size)
        super().upload(destination, source, offset, size, stream)

    def download(self, destination: Any, offset: int, source: int, size: int, stream: Any) -> None:
        self._drive(destination, offset, size)
        super().download(destination, offset, source, size, stream)

    def upload_rows(
        self, destination: int, pitch: int, source: Any, offset: int, width: int, rows: int, stream: Any
    ) -> None:
        self._drive(source, offset, width * rows)
        super().upload_rows(destination, pitch, source, offset, width, rows, stream)

    def write_now(self, *args: Any) -> None:
        self.direct += 1
        super().write_now(*args)

    def read_now(self, *args: Any) -> None:
        self.direct += 1
        super().read_now(*args)


class Segmented(Rig[PageLocking]):
    """A device process whose front is the test."""

    def __init__(self, lockable: int = 1 << 40) -> None:
        self.files, self._their_files = descriptors.pair()
        super().__init__(
            DeviceSpec(0, "cpu", 0, cpu_threads=1, cache_dir=compiled()), lambda spec: PageLocking(spec, lockable)
        )

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self._their_files)
        self.process.run()

    def hand_over(self, channel: int = 1, max_bytes: int = 1 << 40) -> Client:
        return hand_over(self.files, channel, max_bytes)

    def connect(self, channel: int = 1, max_bytes: int = 1 << 40) -> Client:
        client = self.hand_over(channel, max_bytes)
        assert client.next().kind == Kind.LIVE
        return client

    def settled(self) -> None:
        """Returns when no memory is shared."""
        for _ in range(2000):
            if not self.gauges()["segments"]:
                break
            threading.Event().wait(0.005)
        assert self.gauges()["segment_bytes"] == 0
        assert not self.server.locked and not self.server.violations

    def close(self) -> None:
        super().close()
        self.files.close()
        self._their_files.close()


Start = Callable[..., Segmented]


@pytest.fixture
def start() -> Iterator[Start]:
    rigs: list[Segmented] = []

    def make(*args: Any) -> Segmented:
        rigs.append(Segmented(*args))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.server.gate.set()
        rig.server.slow.set()
        rig.close()


def write(buffer: int, segment: int, size: int, at: int = 0, **more: Any) -> dict[str, Any]:
    return {"write": c.Write(buffer=buffer, size=size, shared=c.Shared(segment=segment, offset=at), **more)}


def read(buffer: int, segment: int, size: int, at: int = 0, **more: Any) -> dict[str, Any]:
    return {"read": c.Read(buffer=buffer, size=size, shared=c.Shared(segment=segment, offset=at), **more)}


def ok(result: c.Result) -> c.Result:
    assert not result.HasField("error"), result
    return result


def noise(size: int) -> bytes:
    return bytes(range(1, 252)) * (size // 251) + b"x" * (size % 251)


def check_round_trip(rig: Segmented, memory: mmap.mmap, size: int) -> None:
    data = noise(size)
    memory[:] = data
    ok(rig.call(allocate=c.Allocate(buffer=1, size=size)))
    ok(rig.call(**write(1, 1, size)))
    memory[:] = bytes(size)
    assert ok(rig.call(**read(1, 1, size))).read.size == size
    assert memory[:] == data
    ok(rig.call(free=c.Free(buffers=[1])))


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:segment")


def test_pages_are_locked_in_parts_on_a_separate_thread(start: Start) -> None:
    rig = start()
    client = rig.connect()
    size = 2 * PART + 4096
    memory = client.share(1, size)
    assert rig.server.locks == [(PART, "segments"), (PART, "segments"), (4096, "segments")]
    check_round_trip(rig, memory, size)
    ok(rig.call(allocate=c.Allocate(buffer=2, size=2 * size)))
    rows = c.Rows(width=size // 4096, rows=4096, pitch=2 * (size // 4096))
    ok(rig.call(**write(2, 1, size // 4096 * 4096, rows=rows)))
    assert rig.server.direct == 0
    memory.close()
    client.end.close()
    rig.settled()
    assert mapped() == 0


class PolledServer(PageLocking):
    """A server that does not notify about completed events."""

    def on_progress(self, wake: Any) -> bool:
        super().on_progress(None)
        return False


def test_the_end_of_a_large_copy_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the end of a copy with no work before it is predicted, and that the prediction is dropped at its end,
    successful or not."""
    monkeypatch.setitem(globals(), "PageLocking", PolledServer)
    rig, gates = Segmented(), [threading.Event(), threading.Event()]
    try:
        client = rig.connect()
        size = 4 * MIB
        memory = client.share(1, size)
        ok(rig.call(allocate=c.Allocate(buffer=1, size=size)))
        for command in (write(1, 1, size), read(1, 1, size)):
            ok(rig.call(sync=c.Sync()))  # the stream is known to be idle
            ok(rig.call(**command))
        forecast = rig.process.device.tracks.forecast
        ok(rig.call(sync=c.Sync()))  # a read is answered before its accounting is complete
        assert all(forecast.pace(direction, size) < math.inf for direction in (UP, DOWN)) and not forecast.under_way
        ok(rig.call(sync=c.Sync()))
        rig.server.stream(0).submit(gates[0].wait)
        first, second = rig.start(**write(1, 1, size)), rig.start(**write(1, 1, size))
        small = rig.start(**write(1, 1, 4096))
        ok(rig.call(memory_usage=c.MemoryUsage()))  # all of them have been submitted to the device
        assert len(forecast.under_way) == 1, "the start of the earlier work is not known"
        assert forecast.under_way[0].window_start < math.inf
        gates[0].set()
        for number in (first, second, small):
            ok(rig.answer(number))
        assert not forecast.under_way
        rig.server.stream(0).submit(gates[1].wait)
        rig.start(**read(1, 1, size))
        ok(rig.call(memory_usage=c.MemoryUsage()))
        rig.send(Kind.CLOSE, channel=1)
        gates[1].set()
        rig.until(Kind.CLOSED)
        assert not forecast.under_way
        rig.send(Kind.OPEN, b"{}", channel=1)
        memory.close()
        rig.settled()
    finally:
        for gate in gates:
            gate.set()
        rig.close()


def test_other_sessions_run_between_two_parts(start: Start) -> None:
    """Checks that other operations run between two parts of one segment, and of two that are locked in turn."""
    rig = start()
    client = rig.connect()
    client.announce(1, 3 * PART).close()
    client.announce(2, 2 * PART).close()
    assert {client.next().kind for _ in range(2)} == {Kind.SEGMENT}
    calls = rig.server.locked_between
    assert len(calls) == 5
    assert all(began - ended >= PAUSE_S for (_, ended), (began, _) in itertools.pairwise(calls))
    client.end.close()
    rig.settled()


@pytest.mark.parametrize("lockable", [0, PART, 2 * PART])
def test_memory_that_the_system_does_not_lock(start: Start, lockable: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Checks that unlocked memory works as well, and that the locked part of it is unlocked in the end."""
    rig = start(lockable)
    client = rig.connect()
    size = 2 * PART + 4096 if lockable else 3 * MIB + 5
    memory = client.share(1, size)
    check_round_trip(rig, memory, size)
    assert rig.server.direct > 0 and not rig.server.violations
    memory.close()
    client.share(2, 4096).close()
    client.end.close()
    rig.settled()
    assert rig.server.lockable == lockable
    out = capfd.readouterr()
    assert (out.out + out.err).count("segments_not_locked") == 1


def test_slow_locking_delays_no_other_copy(start: Start) -> None:
    rig = start()
    client = rig.connect()
    rig.server.slow.clear()
    memory = client.announce(1, 4096)
    while not rig.gauges()["segments"]:
        pass
    ok(rig.call(allocate=c.Allocate(buffer=1, size=4096)))
    ok(rig.call(write=c.Write(buffer=1, data=bytes(4096))))
    error = rig.call(**write(1, 1, 4096)).error
    assert from_status(error).reason == Reason.INVALID_HANDLE, "it has not been answered"
    rig.server.slow.set()
    assert client.next().kind == Kind.SEGMENT
    ok(rig.call(**write(1, 1, 4096)))
    memory.close()
    client.end.close()
    rig.settled()


@pytest.mark.parametrize("ended_by", ["release", "connection", "session"])
def test_connection_that_ends_during_page_locking(start: Start, ended_by: str) -> None:
    rig = start()
    client = rig.connect()
    rig.server.slow.clear()
    client.announce(1, 3 * PART).close()
    while not rig.gauges()["segments"]:
        pass
    if ended_by == "release":
        client.release(1)
        client.announce(1, 4096).close()  # the number may be used again
    elif ended_by == "connection":
        client.end.close()
    else:
        rig.send(Kind.CLOSE, channel=1)
        rig.until(Kind.CLOSED)
        rig.send(Kind.OPEN, b"{}", channel=1)
    rig.server.slow.set()
    if ended_by == "release":
        assert client.next() == Frame(Kind.SEGMENT, 0, 0, 1, b""), "the second's; the first is not reported"
        ok(rig.call(allocate=c.Allocate(buffer=1, size=4096)))
        ok(rig.call(**write(1, 1, 4096)))
        client.end.close()
    rig.settled()
    assert mapped() == 0


def launch(rig: Segmented, stream: int = 0) -> None:
    """Launches a kernel that runs until the gate opens."""
    one = c.Dim3(x=1)
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=9))]
    kernel = c.Launch(function=9, grid=one, block=one, arguments=arguments)
    rig.batch(Command(stream=stream, launch=kernel))


def prepare(rig: Segmented) -> None:
    module = c.LoadModule(module=9, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)
    ok(rig.call(load_module=module))
    ok(rig.call(get_function=c.GetFunction(function=9, module=9, name="add_one")))
    ok(rig.call(allocate=c.Allocate(buffer=9, size=4)))
    ok(rig.call(fill=c.Fill(buffer=9, size=4, pattern=b"\0")))
    ok(rig.call(create_stream=c.CreateStream(stream=2)))


def test_pages_are_unlocked_while_the_device_is_idle(start: Start) -> None:
    rig = start()
    client = rig.connect()
    prepare(rig)
    client.share(1, 4096).close()
    rig.server.gate.clear()
    launch(rig)
    ok(rig.call(stream=2, allocate=c.Allocate(buffer=8, size=64)))
    client.release(1)
    while from_status(rig.call(stream=2, **write(8, 1, 1)).error).reason != Reason.INVALID_HANDLE:
        pass
    assert len(rig.server.locked) == 1 and rig.gauges()["segments"] == 1
    ok(rig.call(stream=2, allocate=c.Allocate(buffer=10, size=64)))  # other sessions continue
    rig.server.gate.set()
    rig.settled()
    assert ok(rig.call(read=c.Read(buffer=9, size=4))).read.data == b"\1\0\0\0"
    client.end.close()


def test_busy_device_is_made_idle_to_unlock_pages(start: Start) -> None:
    """Launches kernels without a pause: if much memory waits to be unlocked, launches are held back for a while."""
    rig = start()
    client = rig.connect()
    prepare(rig)
    for ident in range(1, RETIRED + 3):
        client.share(ident, 4096).close()
    over = threading.Event()
    launched = 0
    rig.server.takes = 5e-4

    def flood() -> None:
        nonlocal launched
        while not over.is_set():
            for _ in range(20):
                launch(rig)
            launched += 20
            rig.until(Kind.ACK)

    feeder = threading.Thread(target=flood)
    feeder.start()
    try:
        client.end.close()
        for _ in range(3000):
            if not rig.server.locked:
                break
            threading.Event().wait(0.005)
    finally:
        over.set()
        feeder.join(30)
        rig.server.takes = 0.0
    rig.settled()
    assert int.from_bytes(ok(rig.call(read=c.Read(buffer=9, size=4))).read.data, "little") == launched


@pytest.mark.parametrize("command", [write, read])
def test_copy_refused_by_the_driver_after_some_parts(start: Start, command: Callable[..., dict[str, Any]]) -> None:
    rig = start()
    client = rig.connect()
    size = 2 * PART
    memory = client.share(1, size)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=size)))
    ok(rig.call(fill=c.Fill(buffer=1, size=size, pattern=b"\0")))
    rig.server.loading_waits = False  # so that the device being busy is not the reason why the memory is kept
    gate = threading.Event()
    rig.server.stream(0).submit(gate.wait)
    rig.server.refuse_at = 2
    assert "refuses" in rig.call(**command(1, 1, size)).error.message
    client.release(1)
    while from_status(rig.call(**command(1, 1, 1)).error).reason != Reason.INVALID_HANDLE:
        pass
    assert rig.gauges()["segments"] == 1, "the first copy is still in progress"
    gate.set()
    ok(rig.call(sync=c.Sync()))
    client.end.close()
    memory.close()
    rig.settled()


def test_session_that_ends_with_running_and_queued_copies(start: Start) -> None:
    rig = start()
    client = rig.connect()
    memory = client.share(1, MIB)
    ok(rig.call(allocate=c.Allocate(buffer=1, size=MIB)))
    gate = threading.Event()
    rig.server.stream(0).submit(gate.wait)
    rig.batch(*(Command(**write(1, 1, MIB)) for _ in range(2000)))
    last = rig.start(**write(1, 1, MIB))
    rig.send(Kind.CLOSE, channel=1)
    assert from_status(rig.answer(last).error).reason == Reason.SESSION_EXPIRED
    assert rig.server.locked
    gate.set()
    rig.until(Kind.CLOSED)
    rig.send(Kind.OPEN, b"{}", channel=1)
    memory.close()
    rig.settled()
    assert mapped() == 0
    with pytest.raises(EOFError):
        client.next()


def test_files_whose_close_blocks_delay_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that no other work waits for a file whose close() blocks, and that a client that sends many such files is
    disconnected."""
    rig = start()
    client, good = rig.connect(), rig.connect()
    closed: list[int] = []
    answers = threading.Event()

    def close(file: int) -> None:
        assert answers.wait(30)
        closed.append(file)
        os.close(file)

    monkeypatch.setattr(segment_channel, "os", SimpleNamespace(close=close))
    pipe = os.pipe()
    for ident in range(1, segment_channel.MAX_STRANGE + 1):
        client.send(ident, 4096, pipe[0])
        assert client.next().kind == Kind.ABORT
    good.share(1, 4096).close()
    ok(rig.call(allocate=c.Allocate(buffer=1, size=64)))
    client.send(99, 4096, pipe[0])
    with pytest.raises(EOFError):
        while client.next().kind == Kind.ABORT:
            pass
    answers.set()
    while len(closed) < segment_channel.MAX_STRANGE + 1:
        pass
    for end in pipe:
        os.close(end)
    good.end.close()
    rig.settled()


def test_connection_that_arrives_before_its_channel(start: Start) -> None:
    """Checks a connection that arrives first, which is possible because the two sockets are not ordered."""
    rig = start()
    early = rig.hand_over(channel=5)
    rig.call(memory_usage=c.MemoryUsage())
    rig.send(Kind.OPEN, b"{}", channel=5)
    assert early.next().kind == Kind.LIVE
    early.share(1, 4096).close()
    assert rig.gauges()["segments"] == 1
    early.end.close()
    rig.settled()
    rig.send(Kind.CLOSE, channel=5)
    rig.until(Kind.CLOSED)


def test_connection_that_arrives_after_its_channel(start: Start) -> None:
    """Checks a connection that arrives after the session has ended."""
    rig = start()
    rig.send(Kind.OPEN, b"{}", channel=3)
    rig.gauges()
    late = rig.hand_over(channel=2)
    assert late.end.recv(1) == b""
    rig.send(Kind.CLOSE, channel=3)
    rig.until(Kind.CLOSED)


@pytest.mark.parametrize("body", [{}, {"channel": "one"}, {"channel": 1}, {"channel": None, "max_bytes": 1}])
def test_malformed_messages_of_the_front(start: Start, body: dict[str, Any]) -> None:
    rig = start()
    test_end, process_end = socket.socketpair()
    descriptors.send(rig.files, {"kind": "segments", **body}, [process_end.fileno()])
    descriptors.send(rig.files, {"kind": "segments", "channel": 1, "max_bytes": 1}, [])
    process_end.close()
    test_end.settimeout(30)
    assert test_end.recv(1) == b""
    rig.connect().share(1, 4096).close()


def test_quotas_count_segments_that_are_being_released(start: Start) -> None:
    rig = start()
    client = rig.connect(max_bytes=8192)
    prepare(rig)
    client.share(1, 8192).close()
    rig.server.gate.clear()
    launch(rig)
    client.release(1)
    client.announce(2, 4096).close()
    frame = client.next()
    assert frame.kind == Kind.ABORT
    assert from_status(status_pb2.Status.FromString(frame.payload)).reason == Reason.QUOTA_EXCEEDED
    rig.server.gate.set()
    rig.settled()
    client.share(2, 8192).close()
    client.end.close()
