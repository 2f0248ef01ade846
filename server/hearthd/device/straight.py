"""Launches and the wait for them that go straight through: from the lane, or from the front, to the device, and the
answer back, in one go. So do copies that come one by one, as far as to the device.

Whoever launches and waits, again and again, pays for every step between. So where nothing else is going on (nobody else
has work, nothing of the session waits, nothing looks at its commands), a plain batch is not queued, nor taken apart
into messages and commands, and its answer is written as soon as the device is done, before the books are closed on it.
What does not fit goes the long way, from its beginning or from where it ceased to fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from google.protobuf.message import DecodeError

from hearth_proto.v1 import commands_pb2
from hearthd.device.arrivals import Commands
from hearthd.device.backlog import Backlog
from hearthd.device.context import Device
from hearthd.device.lane import Lane
from hearthd.device.launch import LaunchCommands
from hearthd.device.operation import Origin, Replies
from hearthd.device.outbox import ACK
from hearthd.device.policy import plain_batch
from hearthd.device.policy.plain_batch import PlainBatch
from hearthd.device.session import BatchEntry, Session
from hearthd.device.sharing import Sharing
from hearthd.device.stream import LogicalStream
from hearthd.device.tracks import Track
from hearthd.device.waits import answer_with

HERE_S = 2e-5
"""How long the end of the work is asked for without a look at the sockets: no longer than a turn of the loop takes."""


class Executing(Commands, Replies, Protocol):
    """Who runs and answers what does not go straight through: the executor."""

    def session(self, channel: int) -> Session | None: ...
    @property
    def held_up(self) -> bool:
        """Whether something that was put off is to be tried first."""
        ...


class Straight:
    """Belongs to the device-handle thread."""

    def __init__(self, device: Device, executor: Executing, launches: LaunchCommands, sharing: Sharing) -> None:
        self._device = device
        self._executor = executor
        self._launches = launches
        self._sharing = sharing

    def take(self, lane: Lane, seq: int, payload: bytes) -> bool:
        """A batch has come over a lane on which nothing waits. False, with nothing done, where it goes the long way."""
        session = self._executor.session(lane.channel)
        return session is not None and seq == session.last_seq + 1 and self._take(session, lane, payload)

    def take_linked(self, channel: int, payload: bytes) -> bool:
        """The same for one that the front has passed on, with no other frame beside it."""
        session = self._executor.session(channel)
        if session is None or channel in self._device.outbox.lanes:  # else what has come over the lane goes before it
            return False
        return self._take(session, None, payload)

    def _take(self, session: Session, lane: Lane | None, payload: bytes) -> bool:
        if (
            session.batches
            or session.deferred
            or session.trace is not None
            or session.permissions is not None
            or session.snapshots
            or self._executor.held_up
            or self._device.output.suspects
        ):
            return False
        backlog = self._sharing.alone(session)
        if backlog is None:
            return False
        began = time.perf_counter_ns()
        if not payload.endswith(plain_batch.ENDS):  # of launches alone, for which somebody waits later, or a copy
            return self._copy(lane, session, backlog, payload, began)
        seq = session.last_seq + 1
        batch = plain_batch.read(payload, seq)
        if batch is None:
            return False
        stream = session.streams.items.get(batch.stream)
        if stream is None or stream.capture is not None or stream.flights:
            return False
        if lane is not None:
            lane.came(seq, len(payload))
        self._run(lane, session, backlog, stream, batch, began)
        return True

    def _run(
        self,
        lane: Lane | None,
        session: Session,
        backlog: Backlog,
        stream: LogicalStream,
        batch: PlainBatch,
        began: int,
    ) -> None:
        device, launches = self._device, self._launches
        telemetry, tracks = device.telemetry, device.tracks
        session.last_seq = seq = session.last_seq + 1
        records = batch.records
        entry: BatchEntry | None = None
        index = 0
        if records:
            if launches.again(session, records):
                index = 1
            else:
                entry = BatchEntry(seq)
                session.batches.append(entry)
                index, _ = launches.run_records(session, records, entry, 0)
            telemetry.count("launch", index)
        telemetry.batches += 1
        busy = self._busy(session, stream, batch.all_streams)
        if busy is None or (entry is not None and session.deferred):  # the former: it waits for more than one track
            self._go_on(session, batch, entry, index)
            self._sharing.went(backlog)
            telemetry.batch_execution.observe(time.perf_counter_ns() - began)
            return
        session.batches.clear()  # it has run
        wait = _Wait(device, self._executor, lane, session, stream, batch, seq, index)
        if busy:
            tracks.on_complete(busy[0], wait.end)
            self._sharing.went(backlog)
            telemetry.batch_execution.observe(time.perf_counter_ns() - began)
            if not tracks.notified:
                tracks.ask(busy[0], HERE_S)
            if not wait.over:
                wait.take_its_time()
        else:
            wait.end()
            telemetry.batch_execution.observe(time.perf_counter_ns() - began)
        telemetry.count("sync")
        telemetry.sync_points += 1

    def _copy(self, lane: Lane | None, session: Session, backlog: Backlog, payload: bytes, began: int) -> bool:
        """A Write or a Read alone: it does not wait for its turn, for there is nobody else's. False for all else."""
        seq = session.last_seq + 1
        found = plain_batch.lone_copy(payload, seq)
        if found is None:
            return False
        kind, data = found
        try:
            command = commands_pb2.Command.FromString(data)
        except DecodeError:
            return False
        if command.WhichOneof("kind") != kind:  # there are more fields behind it
            return False
        session.last_seq = seq
        if lane is not None:
            lane.came(seq, len(payload))
        entry = BatchEntry(seq)
        session.batches.append(entry)
        self._executor.command(session, command, kind, batch=entry)
        entry.left -= 1
        if not entry.left:
            self._executor.acknowledge(session, entry)
        self._sharing.went(backlog)
        telemetry = self._device.telemetry
        telemetry.batches += 1
        telemetry.batch_execution.observe(time.perf_counter_ns() - began)
        return True

    def _busy(self, session: Session, stream: LogicalStream, all_streams: bool) -> list[Track] | None:
        """The track to wait for, if any; None: there is more to wait for than one."""
        tracks = self._device.tracks
        if not all_streams:
            return [] if tracks.idle(stream.track) else [stream.track]
        busy = tracks.busy(session.tracks())
        return None if len(busy) > 1 or session.streams.marked else busy

    def _go_on(self, session: Session, batch: PlainBatch, entry: BatchEntry | None, index: int) -> None:
        """The long way from the Sync on: launches before it have to wait, or it waits for more than them."""
        if entry is None:
            entry = BatchEntry(session.last_seq)
            session.batches.append(entry)
        sync = commands_pb2.Command(
            request=plain_batch.number(batch.request),
            stream=batch.stream,
            sync=commands_pb2.Sync(all_streams=batch.all_streams),
        )
        self._executor.command(session, sync, "sync", batch=entry, index=index)
        entry.left -= 1
        if not entry.left:
            self._executor.acknowledge(session, entry)


class _Wait:
    """A Sync whose batch has run. Its ack is sent with its answer, unless that takes its time."""

    __slots__ = ("_batch", "_began", "_device", "_index", "_lane", "_origin", "_replies", "_seq", "_session",
                 "_stream", "over")  # fmt: skip

    def __init__(
        self,
        device: Device,
        replies: Replies,
        lane: Lane | None,
        session: Session,
        stream: LogicalStream,
        batch: PlainBatch,
        seq: int,
        index: int,
    ) -> None:
        self._device = device
        self._replies = replies
        self._lane = lane
        self._session = session
        self._stream = stream
        self._batch = batch
        self._seq = seq
        self._index = index
        self._origin: Origin | None = None
        self._began = time.perf_counter_ns()
        self.over = False

    def end(self) -> None:
        """What it waited for is done."""
        self.over = True
        device, stream = self._device, self._stream
        failed: Iterable[LogicalStream] = ()
        if self._batch.all_streams:
            failed = self._session.streams.marked
        elif stream.errors:
            failed = (stream,)
        if self._origin is None:
            if not (failed or device.output.suspects):
                answer = plain_batch.done(self._batch.request)
                if self._lane is not None:
                    device.outbox.straight(self._lane, self._seq, answer)
                else:
                    device.outbox.straight_linked(self._session.channel, self._seq, answer)
                device.telemetry.sync_wait.observe(time.perf_counter_ns() - self._began)
                return
            self.take_its_time()
        assert self._origin is not None
        answer_with(self._origin, failed)
        device.telemetry.sync_wait.observe(time.perf_counter_ns() - self._began)

    def take_its_time(self) -> None:
        """The long way from here on: others may come between."""
        session = self._session
        self._device.outbox.put(ACK, channel=session.channel, id=self._seq)
        self._origin = Origin(
            self._replies,
            session,
            self._stream,
            "sync",
            batch=BatchEntry(self._seq),
            index=self._index,
            request=plain_batch.number(self._batch.request),
        )
