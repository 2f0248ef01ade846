"""Steps: a batch of launches and a Sync is executed, awaited and answered in one call, outside the backlog.

This is the only special path of a launch, and `docs/performance.md` has the figures that justify it: a client that
launches and waits in a loop pays for every call in between. A step needs neither an operation nor, if it succeeds
immediately, an origin; its answer and its acknowledgement are one message.

A batch is a step only while its session is alone on the device and has no other work, and if its launches are in the
replay cache. Every other batch takes the general path (`FairShare.run_on_arrival`), which has the same results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.message import DecodeError

from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.launch.commands import LaunchCommands
from hearthd.device.launch.stream_commands import answer_with
from hearthd.device.operation import Origin, ReplySink, done_response
from hearthd.device.outbox import ACK, LaneSink
from hearthd.device.scheduler.backlog import Backlog
from hearthd.device.scheduler.fair_share import FairShare
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import PooledStream

_ENDS = (b"\xc2\x01\x00", b"\xc2\x01\x02\x08\x01")
"""Encodings of `Command.sync`, without and with `all_streams`. Other batches are recognized without being decoded."""

_MAX_COMMANDS = 2
"""Most commands of a step: packed launches and a Sync."""


class Step:
    """The Sync of a step, whose launches have been submitted."""

    __slots__ = ("_all_streams", "_began_ns", "_device", "_index", "_lane", "_origin", "_replies", "_request", "_seq",
                 "_session", "_stream", "is_done")  # fmt: skip

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        lane: LaneSink,
        session: DeviceSession,
        stream: LogicalStream,
        sync: commands_pb2.Command,
        index: int,
    ) -> None:
        """`index` is the index of the Sync in its batch, the last that arrived over the lane."""
        self._device = device
        self._replies = replies
        self._lane = lane
        self._session = session
        self._seq = session.last_seq
        self._stream = stream
        self._request = sync.request
        self._all_streams = sync.sync.all_streams
        self._index = index
        self._began_ns = time.perf_counter_ns()
        self._origin: Origin | None = None
        """Set once the batch has been acknowledged ahead of the answer."""
        self.is_done = False

    def busy_tracks(self) -> list[PooledStream]:
        """Returns the tracks whose work the Sync waits for."""
        tracks, track = self._device.tracks, self._stream.track
        live = tracks.live
        if len(live) == 1 and track in live:
            return [track]
        if self._all_streams:
            return tracks.busy(self._session.tracks())
        return [] if tracks.idle(track) else [track]

    def end(self) -> None:
        """Answers the Sync, because the work that it waited for is done."""
        self.is_done = True
        device, session, stream = self._device, self._session, self._stream
        failed: Iterable[LogicalStream] = ()
        if self._all_streams:
            failed = session.streams.marked
        elif stream.errors or stream.successor is not None:
            failed = (stream,)
        if failed or device.output.suspects or self._origin is not None:
            origin = self._origin if self._origin is not None else self.delay_answer()
            answer_with(origin, failed)
            device.outbox.answer()
        else:
            device.outbox.answer_batch(self._lane, self._seq, done_response(self._request))
        device.telemetry.sync_wait.observe(time.perf_counter_ns() - self._began_ns)

    def delay_answer(self) -> Origin:
        """Acknowledges the batch now; other frames may precede the answer. Returns the origin of the Sync."""
        self._device.outbox.put(ACK, channel=self._session.channel, id=self._seq)
        entry = BatchEntry(self._seq)
        self._origin = Origin(
            self._replies, self._session, self._stream, "sync", batch=entry, index=self._index, request=self._request
        )
        return self._origin


class Steps:
    """Executes steps. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        launches: LaunchCommands,
        sharing: FairShare,
        has_deferred: Callable[[], bool],
    ) -> None:
        """`has_deferred` returns True if deferred commands must be tried first."""
        self._device = device
        self._replies = replies
        self._launches = launches
        self._sharing = sharing
        self._has_deferred = has_deferred
        self.execute: Callable[[LaneSink, DeviceSession, int, bytes], bool] = self._execute
        """Executes a batch that has arrived over a lane, if it is a step. Returns False, without effect, if the batch
        must take the general path. An attribute, so that an observer can replace it in a compiled class."""

    def _execute(self, lane: LaneSink, session: DeviceSession, seq: int, payload: bytes) -> bool:
        backlog = self._backlog_if_alone(session) if payload.endswith(_ENDS) else None
        if backlog is None or seq != session.last_seq + 1:
            return False
        began_ns = time.perf_counter_ns()
        commands = _decode(payload, seq)
        if commands is None:
            return False
        launches = len(commands) - 1
        sync = commands[launches]
        stream = session.streams.items.get(sync.stream)
        if stream is None or stream.capture is not None or stream.flights:
            return False
        if launches:
            if not self._launches.relaunch(session, commands[0].launches):
                return False
        elif stream.track.copied_at > stream.track.done_position:
            return False  # the general path lets the device signal the end of the copy
        session.last_seq = seq
        lane.batch_received(seq, len(payload))
        step = Step(self._device, self._replies, lane, session, stream, sync, launches)
        self._await(backlog, step, launches, began_ns / 1e9)
        telemetry = self._device.telemetry
        telemetry.batches += 1
        telemetry.batch_execution.observe(time.perf_counter_ns() - began_ns)
        return True

    def _backlog_if_alone(self, session: DeviceSession) -> Backlog | None:
        """Returns the session's backlog, if the session has no other work; otherwise None."""
        if (
            session.batches
            or session.deferred.waiting
            or session.trace is not None
            or session.permissions is not None
            or session.snapshots
            or session.dropping
            or session.streams.marked
            or self._device.output.suspects
            or self._has_deferred()
        ):
            return None
        return self._sharing.backlog_if_alone(session)

    def _await(self, backlog: Backlog, step: Step, launches: int, began: float) -> None:
        """Answers the step when its work is done; immediately if that takes only moments."""
        device, sharing = self._device, self._sharing
        telemetry, tracks = device.telemetry, device.tracks
        telemetry.operations["launch"] += launches
        telemetry.operations["sync"] += 1
        telemetry.sync_points += 1
        busy = step.busy_tracks()
        if len(busy) == 1:
            # Done before anything else, because the device may complete at any moment.
            tracks.on_complete(busy[0], step.end)
            if not tracks.notified:
                tracks.poll_track(busy[0], sharing.poll_s)
        else:
            tracks.after_all(busy, step.end)
        if not step.is_done:
            step.delay_answer()
        sharing.ran_at_once(backlog, began, launches, step.is_done)


def _decode(payload: bytes, seq: int) -> Sequence[commands_pb2.Command] | None:
    """Returns the commands of the batch, if it has number `seq` and consists of a Sync, or of launches and a Sync."""
    try:
        batch = device_pb2.ExecuteRequest.FromString(payload).batch
    except DecodeError:
        return None
    commands = batch.commands
    count = len(commands)
    if not 0 < count <= _MAX_COMMANDS or batch.seq != seq:
        return None
    sync = commands[count - 1]
    if not sync.request or sync.WhichOneof("kind") != "sync":
        return None
    if count == _MAX_COMMANDS and (commands[0].request or not commands[0].launches):
        return None
    return commands
