"""Stream and event commands: resources of a destroyed stream, and reuse of its track."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuEvent, CpuStream
from hearthd.device.session.session import DeviceSession
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Command, Rig

OTHER = 2
"""Channel of the other session."""
TRANSFER = 9
SIZE = 64
LATE = b'extern "C" __global__ void late(unsigned long long* x) { *x = 5; }'


class Counting(CpuServer):
    """Counts the events with a time that have been recorded and not released."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.timed: list[CpuEvent] = []

    def record(self, stream: CpuStream, *, timing: bool = False) -> CpuEvent:
        event = super().record(stream, timing=timing)
        if timing:
            self.timed.append(event)
        return event

    def release_event(self, event: CpuEvent) -> None:
        if event in self.timed:
            self.timed.remove(event)
        super().release_event(event)


class Sessions(Rig[Counting]):
    """Two sessions, each with a buffer 1."""

    def __init__(self) -> None:
        super().__init__(DeviceSpec(0, "cpu", 0, memory_limit=1 << 20), Counting)
        self.gate = threading.Event()
        self.open(OTHER)
        for channel in (1, OTHER):
            self.call(channel=channel, allocate=c.Allocate(buffer=1, size=SIZE))

    def session(self, channel: int = 1) -> DeviceSession:
        session = self.process.executor.session(channel)
        assert session is not None
        return session

    def hold_up(self, stream: int, channel: int) -> None:
        """Makes work submitted to the stream from now on wait for the gate."""
        on: CpuStream = self.session(channel).streams.items[stream].track.stream
        on.submit(self.gate.wait)

    def fill(self, stream: int = 0, channel: int = 1) -> int:
        return self.start(stream, channel, fill=c.Fill(buffer=1, size=SIZE, pattern=b"\1"))

    def wait_for_bytes(self, stream: int = 0) -> None:
        """Sends a command that waits until `bytes_arrive`."""
        self.batch(Command(stream=stream, write=c.Write(buffer=1, size=SIZE, transfer=TRANSFER)))

    def bytes_arrive(self) -> None:
        self.upload(TRANSFER, bytes(SIZE), SIZE)

    def assert_answered(self, ident: int) -> None:
        """Asserts that the call is answered while the gate is closed."""
        assert not self.answer(ident).HasField("error") and not self.gate.is_set()


@pytest.fixture
def rig() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.gate.set()
    sessions.stop()


def move_track(rig: Sessions) -> None:
    """Destroys stream 1 of the first session; stream 1 of the other session gets its track."""
    track = rig.session().streams.items[1].track
    rig.call(destroy_stream=c.DestroyStream(stream=1))
    rig.call(channel=OTHER, create_stream=c.CreateStream(stream=1))
    assert rig.session(OTHER).streams.items[1].track is track


# ---- streams whose commands wait ----


def test_command_of_a_destroyed_stream_gets_its_turn(rig: Sessions) -> None:
    """The command becomes ready while the session may submit nothing, because the other session has the device."""
    rig.call(create_stream=c.CreateStream(stream=1))
    rig.hold_up(0, OTHER)
    rig.fill(channel=OTHER)
    rig.start(1, write=c.Write(buffer=1, size=SIZE, transfer=TRANSFER))
    rig.barrier()
    assert rig.session().streams.items[1].track.barred
    rig.start(destroy_stream=c.DestroyStream(stream=1))
    rig.barrier()
    rig.bytes_arrive()
    rig.assert_answered(rig.start(sync=c.Sync(all_streams=True)))


def test_session_that_ends_keeps_no_track_or_event_of_its_waiting_commands(rig: Sessions) -> None:
    rig.call(create_stream=c.CreateStream(stream=1))
    rig.call(1, record_event=c.RecordEvent(event=1))
    rig.wait_for_bytes(stream=1)
    rig.batch(
        Command(stream=1, record_event=c.RecordEvent(event=1)),
        Command(destroy_event=c.DestroyEvent(event=1)),
        Command(destroy_stream=c.DestroyStream(stream=1)),
    )
    rig.barrier()
    assert len(rig.session().deferred) == 4 and len(rig.server.timed) == 1
    for channel in (1, OTHER):
        rig.send(Kind.CLOSE, channel=channel)
        rig.until(Kind.CLOSED)
    rig.barrier()
    assert [track.users for track in rig.process.device.tracks.all] == [0] * len(rig.process.device.tracks.all)
    assert rig.server.timed == []


@pytest.mark.parametrize(
    "kind",
    [{"destroy_stream": c.DestroyStream(stream=1)}, {"free": c.Free(buffers=[1])}],
    ids=["destroy_stream", "free"],
)
def test_call_that_destroys_a_handle_is_not_cancelled(rig: Sessions, kind: dict[str, Any]) -> None:
    """The handle is invalid when the call arrives; earlier commands still use its stream and its memory."""
    rig.call(create_stream=c.CreateStream(stream=1))
    rig.wait_for_bytes(stream=1)
    call = rig.start(**kind)
    rig.barrier()
    rig.send(Kind.CANCEL, channel=1, id=call)
    rig.barrier()
    assert not rig.came(Kind.RESULT, call) and len(rig.session().deferred) == 2
    rig.bytes_arrive()
    assert not rig.answer(call).HasField("error")


# ---- the next session on the track ----


def test_session_does_not_wait_for_the_next_one_on_the_track_of_a_destroyed_stream(rig: Sessions) -> None:
    rig.call(create_stream=c.CreateStream(stream=1))
    rig.fill(stream=1)  # the last use of the buffer is on the track
    rig.call(1, sync=c.Sync())
    move_track(rig)
    rig.hold_up(1, OTHER)
    rig.fill(stream=1, channel=OTHER)
    rig.barrier()
    rig.assert_answered(rig.start(sync=c.Sync(all_streams=True)))
    rig.fill()
    rig.assert_answered(rig.start(sync=c.Sync()))
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    assert not rig.gate.is_set()


@pytest.mark.parametrize("parts", [False, True])
def test_next_session_does_not_wait_for_memory_that_was_allocated_on_its_track(rig: Sessions, parts: bool) -> None:
    """The first session still uses the memory when it frees it, on its other stream."""
    rig.call(create_stream=c.CreateStream(stream=1))
    sizes = [c.Allocate.Part(buffer=number, size=SIZE) for number in (5, 6)]
    rig.call(1, allocate=c.Allocate(parts=sizes) if parts else c.Allocate(buffer=5, size=SIZE))
    rig.call(1, sync=c.Sync())
    move_track(rig)
    rig.hold_up(0, 1)
    rig.start(fill=c.Fill(buffer=5, size=SIZE, pattern=b"\1"))
    rig.start(free=c.Free(buffers=[5, 6] if parts else [5]))
    rig.fill(stream=1, channel=OTHER)
    rig.assert_answered(rig.start(1, OTHER, sync=c.Sync()))
    rig.gate.set()
    assert not rig.call(sync=c.Sync(all_streams=True)).HasField("error")
    rig.barrier()
    assert rig.gauges()["memory_in_use_bytes"] == 2 * SIZE


# ---- failures, captures ----


def test_wait_reports_the_failures_of_its_stream_although_the_stream_is_destroyed_meanwhile(rig: Sessions) -> None:
    rig.call(create_stream=c.CreateStream(stream=1))
    rig.hold_up(1, 1)
    rig.batch(
        Command(stream=1, fill=c.Fill(buffer=1, size=SIZE, pattern=b"\1")),
        Command(stream=1, fill=c.Fill(buffer=1, offset=SIZE, size=8, pattern=b"\1")),
        Command(fill=c.Fill(buffer=1, offset=2 * SIZE, size=8, pattern=b"\1")),
        Command(stream=1, request=7, sync=c.Sync()),
        Command(destroy_stream=c.DestroyStream(stream=1)),
    )
    rig.barrier()
    assert not rig.came(Kind.RESPONSE)
    rig.gate.set()
    response = device_pb2.ExecuteResponse.FromString(rig.until(Kind.RESPONSE).payload)
    assert f"[{SIZE}..{SIZE + 8})" in from_status(response.result.error).message
    error = rig.call(sync=c.Sync()).error
    assert f"[{2 * SIZE}..{2 * SIZE + 8})" in error.message and "more failed" not in error.message
    assert not rig.call(sync=c.Sync(all_streams=True)).HasField("error")


def test_capture_of_a_destroyed_stream_keeps_nothing_for_commands_that_waited(rig: Sessions) -> None:
    """A launch on a stream that joined the capture waits for its function when the stream of the capture ends."""
    for stream in (1, 2):
        rig.call(create_stream=c.CreateStream(stream=stream))
    rig.call(1, begin_capture=c.BeginCapture(graph=1))
    rig.call(1, record_event=c.RecordEvent(event=1))
    rig.call(2, wait_event=c.WaitEvent(event=1))
    rig.start(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=LATE))
    rig.start(get_function=c.GetFunction(function=1, module=1, name="late"))
    dim = c.Dim3(x=1, y=1, z=1)
    arguments = [c.Argument(pointer=c.Argument.Pointer(buffer=1))]
    launched = rig.start(2, launch=c.Launch(function=1, grid=dim, block=dim, arguments=arguments))
    destroyed = rig.start(destroy_stream=c.DestroyStream(stream=1))
    buffer = rig.session().buffers.items[1]
    assert not rig.answer(destroyed).HasField("error") and rig.came(Kind.RESULT, launched)
    assert buffer.holders == 0
