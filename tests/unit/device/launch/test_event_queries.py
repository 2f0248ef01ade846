"""Queries of events are answered in the order of the events on their stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hearth_proto.frames import Frame, Kind
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.device.passing import Passing, Polled, prepared
from tests.support.device.rig import Command


@pytest.fixture
def rig() -> Iterator[Passing]:
    yield from prepared(Passing(Polled))


def test_a_query_is_not_answered_before_that_of_an_earlier_event(rig: Passing) -> None:
    """The loop has not noticed the end of the first event when the second one is queried, which is done already."""
    executor, server = rig.process.executor, rig.server
    session = executor.session(1)
    assert session is not None
    stream, gate, done = session.streams.items[0].track.stream, threading.Event(), threading.Event()
    stream.submit(gate.wait)

    def arrive(*commands: c.Command) -> None:
        batch = c.Batch(seq=session.last_seq + 1, commands=commands)
        payload = device_pb2.ExecuteRequest(batch=batch).SerializeToString()
        executor.frame(Frame(Kind.BATCH, 0, 1, 0, payload))
        executor.run_on_arrival(1)

    def run() -> None:
        arrive(
            Command(record_event=c.RecordEvent(event=1)),
            Command(request=1, query_event=c.QueryEvent(event=1, wait=True)),
            Command(record_event=c.RecordEvent(event=2)),
        )
        gate.set()
        second = session.events.items[2].event
        assert second is not None
        deadline = time.monotonic() + 30
        while not server.done(second) and time.monotonic() < deadline:
            time.sleep(1e-4)  # the loop's thread waits, so that it polls nothing meanwhile
        arrive(Command(request=2, query_event=c.QueryEvent(event=2, wait=True)))
        done.set()

    rig.process.loop.post(run)
    assert done.wait(60)
    answers = [device_pb2.ExecuteResponse.FromString(rig.until(Kind.RESPONSE).payload).result for _ in range(2)]
    assert [answer.request for answer in answers] == [1, 2]
    assert all(answer.event.done for answer in answers)


def finish(rig: Passing) -> None:
    """Notices the end of all work. On the device-handle thread."""
    tracks = rig.process.device.tracks
    for track in tracks.unfinished(tracks.all):
        tracks.on_complete(track, lambda: None)
    while not tracks.all_done:
        tracks.poll()


def test_an_event_of_an_idle_stream_is_done_before_the_driver_has_completed_the_record(
    rig: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that take turns on a device may delay the driver's record by milliseconds."""
    executor, done = rig.process.executor, rig.server.done
    session = executor.session(1)
    assert session is not None
    commands = [
        Command(record_event=c.RecordEvent(event=1)),
        Command(request=1, query_event=c.QueryEvent(event=1)),
    ]

    def run() -> None:
        finish(rig)
        monkeypatch.setattr(
            rig.server, "done", lambda event: event is not session.events.items[1].event and done(event)
        )
        payload = device_pb2.ExecuteRequest(batch=c.Batch(seq=session.last_seq + 1, commands=commands))
        executor.frame(Frame(Kind.BATCH, 0, 1, 0, payload.SerializeToString()))
        executor.run_on_arrival(1)

    rig.process.loop.post(run)
    result = device_pb2.ExecuteResponse.FromString(rig.until(Kind.RESPONSE).payload).result
    assert result.request == 1 and result.event.done


def test_an_event_of_a_stream_that_waits_for_another_is_not_done(rig: Passing) -> None:
    """A stream without work in progress waits for its collectives, which run on another stream of the device."""
    executor, gate = rig.process.executor, threading.Event()
    session, tracks = executor.session(1), rig.process.device.tracks
    assert session is not None
    commands = [
        Command(record_event=c.RecordEvent(event=1)),
        Command(request=1, query_event=c.QueryEvent(event=1)),
    ]

    def run() -> None:
        finish(rig)
        busy, stream = tracks.acquire(0), session.streams.items[0].track
        tracks.claim_position(busy, ())
        busy.stream.submit(gate.wait)
        tracks.fence(stream, busy)
        payload = device_pb2.ExecuteRequest(batch=c.Batch(seq=session.last_seq + 1, commands=commands))
        executor.frame(Frame(Kind.BATCH, 0, 1, 0, payload.SerializeToString()))
        executor.run_on_arrival(1)

    rig.process.loop.post(run)
    result = device_pb2.ExecuteResponse.FromString(rig.until(Kind.RESPONSE).payload).result
    gate.set()
    assert result.request == 1 and not result.event.done
