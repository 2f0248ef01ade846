"""Stream and event commands, and the commands that a client waits for: sync and flush."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.launch.published_events import PublishedEvents, check_owned
from hearthd.device.operation import Operation, Origin, destruction
from hearthd.device.platform.event_loop import countdown
from hearthd.device.profiling.profile import ProfileCommands
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import EventEntry, LogicalStream
from hearthd.device.streams.pending_outcomes import both
from hearthd.device.streams.stream_errors import StreamFailure, surface
from hearthd.device.streams.stream_pool import PooledStream
from hearthd.device.transfers.completion_signal import signal

GRACE_S = 1e-3
"""Seconds after which an event query is answered as not done. An event that was just recorded on an idle stream is
thereby reported as done, as with cudaStreamQuery."""


class StreamCommands:
    """Executes the commands of streams and events.

    No command blocks the device-handle thread: answers are sent from completion callbacks.
    """

    def __init__(self, device: DeviceContext, profiles: ProfileCommands, published: PublishedEvents) -> None:
        self._device = device
        self._published = published
        self._profiles = profiles

    # ---- streams ----

    def create_stream(self, origin: Origin, command: commands_pb2.CreateStream) -> None:
        """Creates the stream on a track. Raises Refusal(QUEUE_FULL) if no track can be assigned."""
        session = origin.session
        session.streams.check_new(command.stream)
        session.add_stream(
            command.stream, self._device.tracks.acquire(command.priority + session.priority, bounded=True)
        )
        origin.reply()

    def destroy_stream(self, origin: Origin, command: commands_pb2.DestroyStream) -> Operation:
        """Destroys the stream. Submitted work still runs; unreported errors move to the default stream."""
        session = origin.session
        if command.stream == 0:
            raise Refusal(Reason.INVALID_ARGUMENT, "the default stream cannot be destroyed", fix="close the session")
        stream = session.streams.pop(command.stream)
        capture = stream.capture
        # A recorded command of another stream of the capture may still wait.
        writes = (stream,) if capture is None else (stream, capture.entry)
        return destruction(origin, partial(self._end, session, stream), writes)

    def _end(self, session: DeviceSession, stream: LogicalStream) -> None:
        """Releases what a destroyed stream holds."""
        tracks, track = self._device.tracks, stream.track
        if stream.capture is not None:
            stream.capture.discard(session)
        stream.hand_over(session.streams.items[0])
        self._profiles.forget(session, stream)
        session.streams.leave(stream)
        session.touch(track, tracks.ordering.position(track.index))
        tracks.release(track)

    # ---- events ----

    def record_event(self, origin: Origin, command: commands_pb2.RecordEvent) -> Operation:
        """Creates the event if the handle is new, and returns the operation that records it in the stream."""
        session = origin.session
        entry = session.events.get(command.event)
        if entry is None:
            entry = session.events.add(command.event, EventEntry(command.event))
        event = entry
        check_owned(event, "recorded")
        if origin.capture is not None:
            if event.published:
                raise _captured_publication(event)
            operation: Operation = origin.capture.record(origin, event)
            return operation
        event.capture = None

        def run() -> bool:
            tracks, track = self._device.tracks, origin.stream.track
            if track.budget <= 0:  # an event needs no time slice, because it takes no device time
                return False
            if event.event is not None:
                tracks.retire(event.event)
            event.mark.done = tracks.all_done  # an idle track may wait for others: for collectives
            tracks.claim_position(track, ())
            self._device.begin(origin.stream)
            event.event = self._device.server.record(track.stream, timing=True)
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream, event))

    def wait_event(self, origin: Origin, command: commands_pb2.WaitEvent) -> Operation:
        """Returns the operation that makes the stream wait for the event on the device.

        In a capture, the operation orders the nodes of the graph instead; see `hearthd.device.graphs.capture`.
        """
        event = origin.session.events.find(command.event)
        capture = event.capture if event.capture is not None else origin.capture
        if capture is not None:
            operation: Operation = capture.wait(origin, event)
            return operation

        def run() -> bool:
            if origin.stream.track.budget <= 0:
                return False
            if event.event is not None:  # as in CUDA, waiting for an event that was never recorded has no effect
                self._device.tracks.follow(origin.stream.track, event.event)
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream,), reads=(event,))

    def query_event(self, origin: Origin, command: commands_pb2.QueryEvent) -> Operation:
        """Returns the operation that answers `done`: True if the event is done, otherwise False.

        With `wait`, the answer is sent when the event is done; without, after at most `GRACE_S` seconds. An event that
        has not been recorded counts as done. Raises Refusal(CAPTURE_INVALID) for an event of a capture.
        """
        event = origin.session.events.find(command.event)
        _check_not_captured(event)

        def answer(done: bool) -> None:
            origin.reply(commands_pb2.Result(event=commands_pb2.EventResult(done=done)))

        def run() -> bool:
            if event.event is None or event.mark.done or self._device.server.done(event.event):
                self._device.tracks.poll_watched()  # earlier events are done too, and their queries are answered first
                answer(True)
            elif command.wait:
                self._device.tracks.watch(event.event, partial(answer, True))
            else:
                self._device.tracks.watch(event.event, partial(answer, True), GRACE_S, partial(answer, False))
            return True

        return Operation(origin, run, reads=(event,))

    def elapsed_time(self, origin: Origin, command: commands_pb2.ElapsedTime) -> Operation:
        """Returns the operation that answers, when both events are done, with the nanoseconds between them.

        It fails with INVALID_HANDLE if an event has not been recorded when it runs. Raises Refusal(CAPTURE_INVALID) for
        an event of a capture.
        """
        start = origin.session.events.find(command.start)
        end = origin.session.events.find(command.end)
        for event in (start, end):
            _check_not_captured(event)
        device = self._device

        def run() -> bool:
            for entry in (start, end):
                if entry.event is None:
                    raise Refusal(
                        Reason.INVALID_HANDLE,
                        f"event {entry.handle} has not been recorded",
                        fix="record both events, start first",
                        details={"event": entry.handle},
                    )
            first, second = start.event, end.event
            assert first is not None and second is not None

            def answer() -> None:
                elapsed = device.server.elapsed_ns(first, second)
                origin.reply(commands_pb2.Result(event=commands_pb2.EventResult(done=True, elapsed_ns=elapsed)))

            device.tracks.watch_both(first, second, answer)
            return True

        return Operation(origin, run, reads=(start, end))

    def destroy_event(self, origin: Origin, command: commands_pb2.DestroyEvent) -> Operation:
        """Destroys the handle now; the event is released after earlier commands that use it."""
        event = origin.session.events.pop(command.event)
        return destruction(origin, partial(self._published.release, event), (event,))

    # ---- waiting ----

    def sync(self, origin: Origin, command: commands_pb2.Sync) -> Operation | None:
        """Answers with the unreported failures of the stream, or of all streams, when their work so far is done.

        Raises Refusal(INVALID_ARGUMENT) if no answer was requested. Returns an operation if earlier commands are
        waiting; otherwise None.
        """
        self._require_answer(origin, "sync")
        run = self._sync_all if command.all_streams else self._sync_one
        if not origin.session.deferred.waiting and origin.capture is None and origin.record is None:
            run(origin)  # no earlier command waits
            return None
        return Operation(origin, partial(run, origin), writes=(origin.stream,), barrier=command.all_streams)

    def _sync_one(self, origin: Origin) -> bool:
        stream, session = origin.stream, origin.session
        answer = self._timed_answer(origin, lambda: (stream,))
        if session.snapshots or stream.flights:
            answer = _after_snapshots(session, stream, answer) if session.snapshots else answer
            answer = both(stream.flights, answer) if stream.flights else answer
        self._answer_when_done(origin, stream.track, answer)
        return True

    def _answer_when_done(self, origin: Origin, track: PooledStream, answer: Callable[[], None]) -> None:
        """Calls `answer` when the track is done. The device also signals the end of a copy that is the last work."""
        tracks, stream = self._device.tracks, origin.stream
        if (
            track is stream.track
            and track.copied_at > track.done_position
            and track.copied_at == tracks.ordering.position(track.index)
        ):
            signalled = signal(self._device, origin)
            if signalled is not None:
                answer = _in_turn(answer, signalled.drop)
        tracks.answer_when_done(track, answer)

    def _sync_all(self, origin: Origin) -> bool:
        session, tracks = origin.session, self._device.tracks
        flights = [flight for stream in session.streams.marked for flight in stream.flights]
        answer = self._timed_answer(origin, lambda: session.streams.marked)
        answer = _after_snapshots(session, None, answer) if session.snapshots else answer
        # Recording an event on each of many tracks is expensive, so idle tracks are skipped.
        busy = tracks.busy(session.tracks())
        answer = both(flights, answer) if flights else answer
        if len(busy) > 1:
            tracks.after_all(busy, answer)
        else:
            self._answer_when_done(origin, busy[0] if busy else origin.stream.track, answer)
        return True

    def _timed_answer(self, origin: Origin, streams: Callable[[], Iterable[LogicalStream]]) -> Callable[[], None]:
        """Returns a callback that answers with the failures that these streams have when it is called.

        It also measures how long the client has waited.
        """
        telemetry = self._device.telemetry
        telemetry.sync_points += 1
        began = time.perf_counter_ns()

        def answer() -> None:
            answer_with(origin, streams())
            telemetry.sync_wait.observe(time.perf_counter_ns() - began)

        return answer

    def flush(self, origin: Origin, _command: commands_pb2.Flush) -> Operation:
        """Returns the operation that answers with the unreported failures of the stream.

        It runs when the stream's earlier commands have been submitted; it does not wait for the device. Raises
        Refusal(INVALID_ARGUMENT) if no answer was requested.
        """
        self._require_answer(origin, "flush")

        def run() -> bool:
            answer_with(origin, [origin.stream])
            return True

        return Operation(origin, run, writes=(origin.stream,))

    @staticmethod
    def _require_answer(origin: Origin, command: str) -> None:
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, f"a {command} needs a request number", fix="set Command.request")


def _check_not_captured(event: EventEntry) -> None:
    """Raises Refusal(CAPTURE_INVALID) if the event is a point of a graph, which the device does not reach as such."""
    if event.capture is not None:
        graph = event.capture.entry.handle
        raise Refusal(
            Reason.CAPTURE_INVALID,
            f"event {event.handle} was recorded in the capture of graph {graph}: it orders the nodes of the graph, and "
            "the device does not reach it",
            fix="record the event again outside a capture, for example after a launch of the graph",
            details={"event": event.handle, "graph": graph},
        )


def _captured_publication(event: EventEntry) -> Refusal:
    return Refusal(
        Reason.CAPTURE_INVALID,
        f"event {event.handle} is published, and cannot be recorded in a capture: the device does not reach it",
        fix="record another event in the capture",
        details={"event": event.handle},
    )


def answer_with(origin: Origin, streams: Iterable[LogicalStream]) -> None:
    """Answers a waiting command with the unreported failures of these streams, or with success if there are none."""
    failures: list[StreamFailure] = []
    for stream in streams:
        failures += stream.pop_failures(origin.position)
    if failures:
        failures.sort(key=lambda failure: (failure.seq, failure.index))
        origin.reply_error(surface(failures))
    else:
        origin.reply()


def _in_turn(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both_in_turn() -> None:
        first()
        second()

    return both_in_turn


def _after_snapshots(
    session: DeviceSession, stream: LogicalStream | None, callback: Callable[[], None]
) -> Callable[[], None]:
    """Returns a function that calls `callback` after it has been called and the snapshots under way are done.

    Only snapshots that are under way now count: those of `stream`, or of any stream if `stream` is None.
    """
    snapshots = [snapshot for snapshot in session.snapshots if stream is None or snapshot.stream is stream]
    if not snapshots:
        return callback
    complete_one = countdown(len(snapshots) + 1, callback)
    for snapshot in snapshots:
        snapshot.then(complete_one)
    return complete_one
