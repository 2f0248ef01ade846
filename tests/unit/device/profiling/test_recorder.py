"""Profiles and traces on a fake device with a fake clock: every event is released, and every time is exact."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin, submit
from hearthd.device.outbox import Outbox
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.profiling import recorder
from hearthd.device.profiling.annotations import KernelTiming
from hearthd.device.profiling.profile import ProfileCommands
from hearthd.device.profiling.trace import TraceCommands
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import StreamPool


class Event:
    def __init__(self) -> None:
        self.at: int | None = None
        self.released = False


class Server:
    """A server whose streams run, and whose clock advances, only when the test says so."""

    def __init__(self) -> None:
        self.now = 0
        self.queues: list[deque[Event | int]] = []
        self.live: set[Event] = set()

    def on_progress(self, _wake: object) -> bool:
        return True

    def create_stream(self, _priority: int = 0) -> deque[Event | int]:
        self.queues.append(deque())
        return self.queues[-1]

    def record(self, stream: deque[Event | int], *, timing: bool = False) -> Event:
        event = Event()
        self.live.add(event)
        stream.append(event)
        return event

    def wait(self, stream: object, event: Event) -> None:
        assert not event.released

    def done(self, event: Event) -> bool:
        assert not event.released, "queried after it was released"
        return event.at is not None

    def elapsed_ns(self, start: Event, end: Event) -> int:
        assert not start.released and not end.released and start.at is not None and end.at is not None
        return end.at - start.at

    def release_event(self, event: Event) -> None:
        assert not event.released, "released twice"
        event.released = True
        self.live.discard(event)

    def run(self) -> None:
        """Runs all streams, one after the other; a number in a queue is work of that many nanoseconds."""
        for queue in self.queues:
            while queue:
                what = queue.popleft()
                if isinstance(what, Event):
                    what.at = self.now
                else:
                    self.now += what


class Replies:
    def __init__(self) -> None:
        self.results: list[c.Result] = []

    def result(self, session: DeviceSession, call: int, result: c.Result) -> None:
        self.results.append(result)

    def done(self, session: DeviceSession, call: int, request: int) -> None:
        self.results.append(c.Result(request=request, done=c.Done()))

    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None: ...
    def failed(self, origin: Origin, refusal: Refusal) -> None: ...
    def waited(self, nanoseconds: int) -> None: ...


class Rig:
    def __init__(self, **more: Any) -> None:
        self.server = Server()
        self.tracks = StreamPool(self.server, 4, lambda: None)  # type: ignore[arg-type]
        self.posted: deque[Callable[[], None]] = deque()
        self.device = DeviceContext(
            spec=SimpleNamespace(),
            server=self.server,
            tracks=self.tracks,
            staging=None,
            grants=None,
            compiler=None,
            outbox=Outbox(cast(socket.socket, None), lambda _wanted: None),
            telemetry=Telemetry(),
            limits=None,
            output=None,
            idle_work=None,
            kick=lambda session: None,
            retry_soon=lambda: None,
        )  # type: ignore[arg-type]
        self.session = DeviceSession(1, {}, self.tracks.acquire)
        self.replies = Replies()
        self.profiles = ProfileCommands(self.device)
        self.traces = TraceCommands(self.device, self.posted.append, **more)
        self.traces.opened(self.session)
        self.batch = BatchEntry(1)
        self.index = itertools.count()
        self.base = len(self.server.live)

    def origin(self, name: str, stream: LogicalStream | None = None, request: int = 0) -> Origin:
        stream = stream or self.session.streams.items[0]
        return Origin(
            self.replies, self.session, stream, name, batch=self.batch, index=next(self.index), request=request
        )

    def work(self, name: str, length: int, stream: LogicalStream | None = None, size: int = 0) -> None:
        """Submits a command that keeps the device busy for `length` nanoseconds."""
        origin = self.origin(name, stream)
        track = origin.stream.track

        def run() -> bool:
            self.device.begin(origin.stream, size)
            track.stream.append(length)
            return True

        submit(Operation(origin, run, writes=(origin.stream,)))

    def refused(self, name: str) -> None:
        def run() -> bool:
            raise Refusal(Reason.LAUNCH_INVALID, "no")

        origin = self.origin(name)
        submit(Operation(origin, run, writes=(origin.stream,)))

    def start(self, profile: int, stream: LogicalStream | None = None) -> None:
        submit(self.profiles.start(self.origin("start_profile", stream), c.StartProfile(profile=profile)))

    def end(self, profile: int, stream: LogicalStream | None = None) -> None:
        submit(self.profiles.end(self.origin("end_profile", stream, request=1), c.EndProfile(profile=profile)))

    def trace(self, **more: int) -> None:
        self.traces.start(self.origin("start_trace", request=1), c.StartTrace(**more))

    def end_trace(self) -> c.TraceResult:
        operation = self.traces.end(self.origin("end_trace", request=1), c.EndTrace())
        submit(operation)
        self.settle()
        while not self.posted:  # the answer is built on another thread
            pass
        self.posted.popleft()()
        return self.replies.results[-1].trace

    def settle(self) -> None:
        self.server.run()
        while self.tracks.poll():
            self.server.run()

    def leaked(self) -> int:
        return len(self.server.live) - self.base


# ---- profiles ----


def test_nested_and_overlapping_times_are_exact_and_all_events_are_released() -> None:
    rig = Rig()
    rig.start(1)
    rig.work("launch a", 100)
    rig.start(2)
    rig.work("launch b", 1000)
    rig.start(3)
    rig.work("launch c", 10_000)
    rig.end(2)
    rig.work("launch d", 100_000)
    rig.end(1)
    rig.end(3)
    rig.settle()
    assert [result.profile.device_ns for result in rig.replies.results] == [11_000, 111_100, 110_000]
    assert rig.leaked() == 0


def test_streams_apart() -> None:
    rig = Rig()
    rig.session.add_stream(5, rig.tracks.acquire())
    side = rig.session.streams.items[5]
    rig.start(1)
    rig.start(2, side)
    rig.work("launch a", 100)
    rig.work("launch b", 7, side)
    rig.end(1)
    rig.end(2, side)
    rig.settle()
    assert [result.profile.device_ns for result in rig.replies.results] == [100, 7]
    assert rig.leaked() == 0


@pytest.mark.parametrize("running", [False, True])
def test_a_session_that_ends_leaves_no_events(running: bool) -> None:
    rig = Rig()
    rig.start(1)
    rig.start(2)
    if running:
        rig.work("launch a", 100)
    rig.start(3)
    rig.end(2)
    rig.profiles.close(rig.session)
    rig.settle()
    assert rig.leaked() == 0 and not rig.session.profiles.items


def test_profiles_end_with_their_stream() -> None:
    rig = Rig()
    rig.session.add_stream(5, rig.tracks.acquire())
    side = rig.session.streams.items[5]
    rig.start(1, side)
    rig.work("launch a", 1, side)
    rig.start(2)
    rig.profiles.forget(rig.session, rig.session.streams.pop(5))
    assert list(rig.session.profiles.items) == [2]
    rig.end(2)
    rig.settle()
    assert rig.leaked() == 0


def test_an_end_that_never_runs_releases_its_event() -> None:
    rig = Rig()
    rig.start(1)
    rig.work("launch a", 1)
    operation = rig.profiles.end(rig.origin("end_profile", request=1), c.EndProfile(profile=1))
    operation.abandon(Refusal(Reason.SESSION_EXPIRED, "gone"))
    rig.settle()
    assert rig.leaked() == 0


def test_failure_inside_voids_the_enclosing_profiles_and_is_raised_by_the_first() -> None:
    rig = Rig()
    rig.refused("launch before")
    rig.start(1)
    rig.start(2)
    rig.refused("launch inside")
    rig.end(2)
    rig.start(3)
    rig.end(1)
    rig.end(3)
    rig.refused("launch after")
    rig.settle()
    first, second, third = rig.replies.results
    assert "launch before" in first.error.message and "1 more" in first.error.message
    assert "launch inside failed while it was measured" in second.error.message
    assert third.HasField("profile")
    assert len(rig.session.streams.items[0].errors.pop_all()) == 1, "the later failure is still to be reported"
    assert rig.leaked() == 0


# ---- traces ----


def test_times_bytes_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.trace()
    rig.work("launch a", 500)
    rig.work("copy", 700, size=64)
    rig.refused("launch b")
    submit(Operation(rig.origin("flush"), lambda: True))
    result = rig.end_trace()
    events = [
        (event.name, event.kernel, event.ended_ns - event.started_ns, event.bytes, event.error)
        for event in result.events
    ]
    assert events == [
        ("launch", "a", 500, 0, ""), ("copy", "", 700, 64, ""), ("launch", "b", 0, 0, "LAUNCH_INVALID"),
        ("flush", "", 0, 0, ""),
    ]  # fmt: skip
    assert result.events[1].started_ns - result.events[0].started_ns == 500, "on the device's clock"
    for event in result.events:
        assert 0 <= event.queued_ns <= event.submitted_ns <= event.started_ns <= event.ended_ns
    assert rig.leaked() == 0 and rig.session.trace is None


def test_the_reference_is_renewed_and_nothing_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RENEW_NS", 1000)
    rig = Rig()
    rig.trace()
    for _ in range(20):
        rig.work("launch a", 900)
        rig.settle()
    result = rig.end_trace()
    starts = [event.started_ns for event in result.events]
    assert all(event.ended_ns - event.started_ns == 900 for event in result.events)
    assert starts == sorted(starts) and len(starts) == 20
    assert rig.leaked() == 0


def test_full_traces_count_the_rest_and_closed_ones_release_events(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.trace(max_events=3)
    for _ in range(10):
        rig.work("launch a", 1)
    result = rig.end_trace()
    assert len(result.events) == 3 and result.dropped == 7 and rig.leaked() == 0
    monkeypatch.setattr(recorder, "MAX_BYTES", 1000)
    rig = Rig()
    rig.trace()
    for _ in range(20):
        rig.work("launch " + "k" * 500, 1)
    result = rig.end_trace()
    assert 0 < len(result.events) < 20 and len(result.events) + result.dropped == 20
    rig.trace()
    rig.work("launch a", 1)
    rig.traces.closed(rig.session)  # while work is under way
    rig.settle()
    assert rig.leaked() == 0 and rig.traces.running == 0


class Activity:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.numbers: dict[int, str] = {}
        self.error: Exception | None = None

    def start(self) -> int:
        self.calls.append("start")
        return 7

    def stop(self) -> None:
        self.calls.append("stop")

    def push(self, name: str, number: int) -> None:
        self.calls.append(f"push {name}")
        self.numbers[number] = name

    def pop(self) -> None:
        self.calls.append("pop")

    def discard(self, trace: int) -> None:
        self.calls.append(f"discard {trace}")

    def collect(self, trace: int, numbers: Any) -> list[KernelTiming]:
        self.calls.append(f"collect {trace}")
        if self.error is not None:
            raise self.error
        return [
            KernelTiming(n, "k", 5, 9, (1, 2, 3), (4, 5, 6), 32, 64) for n in numbers if "launch" in self.numbers[n]
        ]


def test_kernel_activity_and_marks_are_recorded_with_the_trace() -> None:
    activity, marks = Activity(), Activity()
    rig = Rig(activity=activity, marks=marks)
    rig.work("launch before", 1)
    assert marks.calls == ["push launch before", "pop"] and activity.calls == []
    rig.trace()
    rig.work("launch a", 1)
    rig.work("copy", 1)
    result = rig.end_trace()
    assert activity.calls == ["start", "push launch a", "pop", "push copy", "pop", "stop", "collect 7"]
    assert marks.calls[2:6] == ["push launch a", "pop", "push copy", "pop"]
    (kernel,) = result.kernels
    assert (kernel.name, kernel.seq, kernel.index, kernel.registers) == ("k", 1, result.events[0].index, 32)
    assert kernel.ended_ns - kernel.started_ns == 4 and (kernel.grid.y, kernel.block.z) == (2, 6)
    rig.work("launch after", 1)
    assert marks.calls[-2:] == ["push launch after", "pop"], "marks continue"
    assert activity.calls[-1] == "collect 7"


def test_activity_that_fails_costs_only_the_kernels(capfd: pytest.CaptureFixture[str]) -> None:
    activity = Activity()
    activity.error = OSError("cupti is gone")
    rig = Rig(activity=activity)
    rig.trace()
    rig.work("launch a", 1)
    result = rig.end_trace()
    assert len(result.events) == 1 and not result.kernels
    assert "cupti is gone" in capfd.readouterr().err


def test_a_trace_that_is_not_reported_discards_its_kernels() -> None:
    activity = Activity()
    rig = Rig(activity=activity)
    rig.trace()
    rig.work("launch a", 1)
    rig.traces.closed(rig.session)
    assert "stop" not in activity.calls, "a kernel is running"
    rig.settle()
    assert activity.calls[-2:] == ["stop", "discard 7"]


def test_a_trace_that_the_driver_refuses_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    activity = Activity()
    rig = Rig(activity=activity)

    def refuse(*_arguments: object, **_more: object) -> None:
        raise Refusal(Reason.OUT_OF_MEMORY, "no event")

    with monkeypatch.context() as patch:
        patch.setattr(rig.server, "record", refuse)
        with pytest.raises(Refusal):
            rig.trace()
    assert activity.calls == ["start", "stop", "discard 7"] and rig.traces.running == 0
    rig.trace()
    rig.work("launch a", 1)
    assert len(rig.end_trace().kernels) == 1 and rig.leaked() == 0
