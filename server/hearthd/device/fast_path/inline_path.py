"""Inline path: a plain batch is executed in the loop iteration in which it arrives.

A client that launches and waits in a loop pays for every step in between. While its session is alone on the device,
with no other work, no trace and no queued command, such a batch is neither queued nor decoded into messages, and its
answer is written on completion, before the accounting.

Covers launches with a Sync, single copies (`hearthd.device.fast_path.copies`) and the batches of
`hearthd.device.fast_path.mixed_batch`. Other batches take the queued path, from the beginning or from the first command
that the inline path cannot execute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from google.protobuf.message import DecodeError

from hearth_proto.chunks import varint
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import mixed_batch, plain_batch
from hearthd.device.fast_path.answer import InlineAnswer, latest
from hearthd.device.fast_path.completion import InlineSync
from hearthd.device.fast_path.completion_signal import signal
from hearthd.device.fast_path.copies import InlineCopies, InlineCopy, SegmentOperands
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.fast_path.mixed_batch import MixedBatch
from hearthd.device.fast_path.plain_batch import LoneCopy, PlainBatch
from hearthd.device.fast_path.reads import InlineRead, InlineReads
from hearthd.device.launch.commands import LaunchCommands
from hearthd.device.operation import ReplySink
from hearthd.device.outbox import LaneSink
from hearthd.device.scheduler.arrivals import CommandRunner, InlineHandler
from hearthd.device.scheduler.backlog import Backlog
from hearthd.device.scheduler.fair_share import FairShare
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import PooledStream
from hearthd.device.transfers.segments import Segments

POLL_S = 2e-5
"""Seconds for which completion is polled without checking the sockets; no longer than one loop iteration takes."""

MAX_POLLED_BYTES = 512 << 10
"""Largest copy, in bytes, that may complete within `POLL_S`."""


class BatchExecutor(CommandRunner, ReplySink, Protocol):
    """The methods of the executor that run and answer commands on the queued path.

    Implemented by `hearthd.device.process.executor.Executor`.
    """

    def session(self, channel: int) -> DeviceSession | None:
        """Returns the open session of the channel; None if there is none."""
        ...

    @property
    def has_deferred(self) -> bool:
        """True if a deferred command has to be tried first."""
        ...


class InlinePath:
    """Executes plain batches at once. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        executor: BatchExecutor,
        launches: LaunchCommands,
        sharing: FairShare,
        segments: Segments,
        inline_handlers: Mapping[str, InlineHandler],
    ) -> None:
        """`inline_handlers` maps a kind of command to the function that is tried before the queued path."""
        self._device = device
        self._executor = executor
        self._launches = launches
        self._sharing = sharing
        self._inline_handlers = inline_handlers
        self.copies = InlineCopies(device, segments, executor)
        self.reads = InlineReads(device, executor)
        self.execute: Callable[[DeviceSession, LaneSink | None, bytes], bool] = self._execute
        """Executes a batch of a session, or returns False if it has to take the queued path. An attribute, as the two
        below, so that an observer can replace it in a compiled class."""
        self.submit_copy: Callable[[InlineBatch, bytes, SegmentOperands], InlineCopy | None] = self.copies.submit
        self.submit_read: Callable[[InlineBatch, LogicalStream, bytes, commands_pb2.Read], InlineRead | None]
        self.submit_read = self.reads.submit
        self.poll_s = POLL_S
        """Seconds for which the end of the work is polled without a check of the sockets."""
        self.answered = False
        """True if a command was answered in the loop iteration in which it arrived, since the caller last reset the
        attribute."""

    def execute_batch(self, lane: LaneSink, seq: int, payload: bytes) -> bool:
        """Executes a batch from a lane that has no backlog.

        Returns False, without effect, if the batch must take the queued path.
        """
        session = self._executor.session(lane.channel)
        return session is not None and seq == session.last_seq + 1 and self.execute(session, lane, payload)

    def take_linked(self, channel: int, payload: bytes) -> bool:
        """Executes a batch that came over the link as the only frame. Returns False as `execute_batch` does."""
        session = self._executor.session(channel)
        # With a lane, earlier batches may still arrive over it.
        if session is None or channel in self._device.outbox.lanes:
            return False
        return self.execute(session, None, payload)

    def _execute(self, session: DeviceSession, lane: LaneSink | None, payload: bytes) -> bool:
        backlog = self._backlog_if_alone(session)
        if backlog is None:
            return False
        seq = session.last_seq + 1
        batch = InlineBatch(session, backlog, lane, seq, len(payload), time.perf_counter_ns())
        if payload.endswith(plain_batch.ENDS):
            plain = plain_batch.read(payload, seq)
            if plain is not None:
                return self._execute_plain(batch, plain)
        else:
            lone = plain_batch.lone_copy(payload, seq)
            if lone is not None:
                return self._execute_copy(batch, lone)
            if plain_batch.only_launches(payload, seq):  # the client does not wait for these launches now
                return False
        mixed = mixed_batch.read(payload, seq)
        if mixed is not None:
            self._execute_mixed(batch, mixed)
        return mixed is not None

    def _backlog_if_alone(self, session: DeviceSession) -> Backlog | None:
        """Returns the session's backlog, if the session has no other work."""
        if (
            session.batches
            or session.deferred
            or session.trace is not None
            or session.permissions is not None
            or session.snapshots
            or session.dropping
            or self._executor.has_deferred
            or self._device.output.suspects
        ):
            return None
        return self._sharing.backlog_if_alone(session)

    # ---- launches and a wait ----

    def _execute_plain(self, batch: InlineBatch, plain: PlainBatch) -> bool:
        session = batch.session
        stream = _usable_stream(session, plain.stream)
        if stream is None:
            return False
        batch.accept()
        index, entry = self._issue(session, plain.records) if plain.records else (0, None)
        busy = self._busy(session, stream, plain.all_streams)
        # If `busy` is None, the Sync waits for more than one track or for marked streams.
        if busy is None or (entry is not None and session.deferred):
            self._execute_last(session, _sync_of(plain), "sync", entry, index)
            self._account(batch, index)
            return True
        if entry is not None:
            session.batches.clear()  # the batch has run
        self._wait(batch, InlineSync(self._device, self._executor, batch, stream, plain, index), busy, index)
        return True

    def _wait(self, batch: InlineBatch, wait: InlineSync, busy: list[PooledStream], launches: int) -> None:
        """Answers the Sync at once if no track is busy; otherwise waits for the one busy track."""
        device = self._device
        device.telemetry.sync_points += 1
        if not busy:
            wait.end()
            self.answered = True
            if device.tracks.live:
                self._sharing.submitted(batch.backlog)
            self._count_metrics(batch, launches)
        else:
            tracks, track = device.tracks, busy[0]
            copy = latest(track, tracks.ordering.position(track.index))
            if copy is not None and track is wait.stream.track:
                wait.signalled = signal(device, batch, wait.stream, wait.request)
            if wait.signalled is None and copy is not None and copy.follow(wait.end):
                tracks.expect()
            else:
                # Done before anything else, because the device may complete at any moment.
                tracks.on_complete(track, wait.end)
            self._account_submitted(batch, wait, track, launches, launches, not tracks.notified)
        device.telemetry.count("sync")

    def _account_submitted(
        self,
        batch: InlineBatch,
        pending: InlineSync | InlineAnswer,
        track: PooledStream,
        commands: int,
        launches: int,
        poll_first: bool,
    ) -> None:
        """Accounts for submitted commands, of which `launches` are launches.

        If `poll_first`, the awaited work may complete at any moment, and is polled first.
        """
        tracks, sharing, since = self._device.tracks, self._sharing, time.perf_counter()
        was_idle = not sharing.active
        if poll_first:
            tracks.poll_track(track, self.poll_s)
        if pending.is_done and was_idle and not tracks.live:
            sharing.completed_inline(batch.backlog, since, commands)
        else:
            sharing.submitted(batch.backlog, since)
        if pending.is_done:
            self.answered = True
        else:
            pending.delay_answer()
        self._count_metrics(batch, launches)

    def _issue(self, session: DeviceSession, records: bytes) -> tuple[int, BatchEntry | None]:
        """Runs the launches.

        Returns their number, and the batch entry, which is None if the replay cache contained all of them.
        """
        if self._launches.relaunch(session, records):
            return 1, None
        entry = BatchEntry(session.last_seq)
        session.batches.append(entry)
        return self._launches.run_records(session, records, entry, 0)[0], entry

    def _count_metrics(self, batch: InlineBatch, launches: int) -> None:
        """Updates the metrics for a batch that has run."""
        telemetry = self._device.telemetry
        if launches:
            telemetry.count("launch", launches)
        telemetry.batches += 1
        telemetry.batch_execution.observe(time.perf_counter_ns() - batch.began)

    def _account(self, batch: InlineBatch, launches: int) -> None:
        """Accounts for a batch that has run and left work on the device."""
        self._sharing.submitted(batch.backlog)
        self._count_metrics(batch, launches)

    # ---- copies, and mixed batches ----

    def _execute_copy(self, batch: InlineBatch, lone: LoneCopy) -> bool:
        """Executes a single Write or Read. No time slice is needed, because no other session has work."""
        operands, command = self.copies.find_operands(lone), None
        if operands is None:
            try:
                command = commands_pb2.Command.FromString(lone.data)
            except DecodeError:
                return False
            if command.WhichOneof("kind") != lone.kind:  # the command has more fields
                return False
            operands = self.copies.cache_operands(lone, command)
        if operands is not None:
            copy = self.submit_copy(batch, lone.request, operands)
            if copy is not None:
                batch.accept()
                self._account_copy(batch, copy, 0)
                return True
        if command is None:
            command = commands_pb2.Command.FromString(lone.data)
        self._execute_mixed(batch, mixed_batch.alone(lone.kind, command))
        return True

    def _execute_mixed(self, batch: InlineBatch, mixed: MixedBatch) -> None:
        session, last = batch.session, mixed.last
        stream = _usable_stream(session, last.stream)
        batch.accept()
        entry = BatchEntry(batch.seq)
        session.batches.append(entry)
        index, launches = self._execute_unanswered(session, mixed, entry)
        if stream is not None and mixed.kind and not session.deferred:
            request = varint(last.request)
            if mixed.kind == "read":
                reading = self.submit_read(batch, stream, request, last.read)
                if reading is not None:
                    session.batches.clear()
                    self._account_copy(batch, reading, launches)
                    return
            else:
                busy = self._busy(session, stream, last.sync.all_streams)
                if busy is not None:
                    session.batches.clear()
                    plain = plain_batch.only_sync(request, last.stream, last.sync.all_streams)
                    wait = InlineSync(self._device, self._executor, batch, stream, plain, index)
                    self._wait(batch, wait, busy, launches)
                    return
        self._execute_last(session, last, mixed.kind, entry, index)
        self._account(batch, launches)

    def _execute_unanswered(self, session: DeviceSession, mixed: MixedBatch, entry: BatchEntry) -> tuple[int, int]:
        """Runs or defers the commands without an answer.

        Returns their number, in which each launch counts, and the number of launches.
        """
        index = launches = 0
        for kind, command in mixed.unanswered:
            if kind == "launches":
                count = self._launches.run_records(session, command.launches, entry, index)[0]
                index += count
                launches += count
                continue
            handler = self._inline_handlers.get(kind)
            if handler is None or not handler[0](session, command, entry, index):
                self._executor.command(session, command, kind, batch=entry, index=index)
            index += 1
        return index, launches

    def _account_copy(self, batch: InlineBatch, copy: InlineAnswer, launches: int) -> None:
        """Accounts for a copy that was submitted completely or in part."""
        self._device.telemetry.count(copy.name)
        if copy.refusal is not None:
            self._account(batch, launches)
            copy.fail(copy.refusal)
            return
        poll_first = copy.size <= MAX_POLLED_BYTES and len(copy.track.pending) == 1 and not self._device.tracks.notified
        self._account_submitted(batch, copy, copy.track, launches + 1, launches, poll_first)

    # ---- common ----

    def _busy(self, session: DeviceSession, stream: LogicalStream, all_streams: bool) -> list[PooledStream] | None:
        """Returns the one track to wait for, or an empty list if there is nothing to wait for.

        Returns None if there are several such tracks, or if streams have marks such as errors.
        """
        tracks, track = self._device.tracks, stream.track
        if not all_streams:
            return [] if tracks.idle(track) else [track]
        live = tracks.live
        busy = [track] if len(live) == 1 and track in live else tracks.busy(session.tracks())
        return None if len(busy) > 1 or session.streams.marked else busy

    def _execute_last(
        self, session: DeviceSession, last: commands_pb2.Command, kind: str, entry: BatchEntry | None, index: int
    ) -> None:
        """Executes the last command, if the batch has one, on the queued path.

        Called if earlier commands have to wait, or if the command waits for other work.
        """
        if entry is None:
            entry = BatchEntry(session.last_seq)
            session.batches.append(entry)
        if kind:
            self._executor.command(session, last, kind, batch=entry, index=index)
        entry.left -= 1
        if not entry.left:
            self._executor.acknowledge(session, entry)


def _usable_stream(session: DeviceSession, handle: int) -> LogicalStream | None:
    """Returns the stream if the inline path can use it; otherwise None."""
    stream = session.streams.items.get(handle)
    return None if stream is None or stream.capture is not None or stream.flights else stream


def _sync_of(plain: PlainBatch) -> commands_pb2.Command:
    return commands_pb2.Command(
        request=plain_batch.number(plain.request),
        stream=plain.stream,
        sync=commands_pb2.Sync(all_streams=plain.all_streams),
    )
