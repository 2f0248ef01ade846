"""Executes the frames of a session as commands, in order, and yields when other sessions must be allowed to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Protocol

from google.protobuf.message import DecodeError

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.launch.commands import LaunchCommands
from hearthd.device.scheduler.backlog import LAUNCH, NEEDS, NOTHING, Backlog, Changes, PeekedBatch
from hearthd.device.session.session import BatchEntry, DeviceSession

LOOK_AHEAD_BYTES = 64 << 10
"""Largest batch, in bytes, that is decoded before its time slice: decoding takes time that belongs to other
sessions."""

HEAVY = {"collective": 15, "all_reduce": 15}
"""Extra cost of a command beyond one, in commands. The messages of a collective to its peers are sent at the end of the
loop iteration, so a long queue of collectives must not delay the first message."""

_NONE: frozenset[int] = frozenset()
_NO_HANDLER = (None, 0)

CHANGING = frozenset({"begin_capture", "end_capture", "create_stream", "destroy_stream"})
"""Commands that decide the outcome of later commands. No event query behind one of them is answered early."""


InlineHandler = tuple[Callable[[DeviceSession, commands_pb2.Command, BatchEntry, int], bool], int]
"""A function that runs a command of a batch (given the batch's entry and the command's index), and the number of
commands that it submits to the device: 1 or 0. The function returns False, without effect, if the command must take the
queued path."""


class CommandRunner(Protocol):
    """The methods of the executor that run and answer commands."""

    def command(
        self,
        session: DeviceSession,
        command: commands_pb2.Command,
        kind: str,
        *,
        batch: BatchEntry | None = None,
        index: int = 0,
        call: int = 0,
    ) -> None:
        """Runs the command, or defers it until its inputs are available.

        `kind` is the command's kind; "" if it has none.
        """
        ...

    def result(self, session: DeviceSession, call: int, result: commands_pb2.Result) -> None:
        """Sends the result: as the answer to the single call `call`, or as a stream response if `call` is 0."""
        ...

    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None:
        """Acknowledges the session's oldest complete batches. Called when all commands of `entry` have run."""
        ...


class Arrivals:
    """Decodes frames and runs their commands. Device-handle thread only.

    The generators that `batch` and `call` return yield whenever they must not continue; see `Backlog.quota` and
    `Backlog.may_submit`.
    """

    def __init__(
        self,
        device: DeviceContext,
        launches: LaunchCommands,
        commands: CommandRunner,
        inline_handlers: Mapping[str, InlineHandler],
    ) -> None:
        """`inline_handlers` maps a kind of command to the function that is tried before the queued path."""
        self._device = device
        self._inline_handlers = inline_handlers
        self._launches = launches
        self._commands = commands
        self.handlers: dict[int, Callable[[Backlog, Frame], Iterator[None]]] = {
            Kind.BATCH: self.batch,
            Kind.CALL: self.call,
        }

    def batch(self, backlog: Backlog, frame: Frame) -> Iterator[None]:
        """Runs the commands of a batch; yields whenever the session must stop."""
        session = backlog.session
        opened = self._open(backlog, frame)
        if opened is None:
            return
        batch, answered = opened
        telemetry, inline_handlers = self._device.telemetry, self._inline_handlers
        began = time.perf_counter_ns()
        backlog.paused = 0
        entry = BatchEntry(session.last_seq)
        session.batches.append(entry)
        index = 0
        for position, command in enumerate(batch.commands):
            records = command.launches
            # This implies the kind "launches"; WhichOneof would cost as much as a launch.
            if records and not command.request:
                index += yield from self._run_records(backlog, records, entry, index, position)
                continue
            kind = command.WhichOneof("kind") or ""
            handler, cost = inline_handlers.get(kind, _NO_HANDLER)
            if (
                handler is not None
                and backlog.quota > 0
                and backlog.room >= cost
                and not answered
                and not session.dropping
            ):
                if handler(session, command, entry, index):
                    backlog.quota -= 1
                    backlog.room -= cost
                    index += 1
                    continue
            elif kind == "launches" and not command.request:
                continue  # the field is empty
            if not answered or position not in answered:
                need = NEEDS.get(kind, NOTHING)
                while backlog.quota <= 0 or (
                    (not backlog.may_submit(need) or (need and self._full(backlog, command)))
                    and not (session.dropping and _dropped(backlog, command, kind))
                ):
                    yield from _pause(backlog, position)
                self._commands.command(session, command, kind, batch=entry, index=index)
                backlog.quota -= 1 + HEAVY.get(kind, 0)
                if need:
                    backlog.room -= 1
                if kind == "record_event" and backlog.awaited_queries:
                    for waiting in backlog.awaited_queries.pop(command.record_event.event, ()):
                        self._commands.command(session, waiting, "query_event")
            index += 1
        entry.left -= 1
        if not entry.left:
            self._commands.acknowledge(session, entry)
        telemetry.batch_execution.observe(time.perf_counter_ns() - began - backlog.paused)

    def _run_records(
        self, backlog: Backlog, records: bytes, entry: BatchEntry, index: int, position: int
    ) -> Generator[None, None, int]:
        """Runs packed launches and returns their number."""
        telemetry, session = self._device.telemetry, backlog.session
        at = count = 0
        while at < len(records):
            if session.dropping and backlog.quota > 0:
                dropped, at = self._launches.drop_records(session, records, entry, index + count, at, backlog.quota)
                count += dropped
                backlog.quota -= dropped
                if dropped:
                    continue
            if backlog.quota <= 0 or not backlog.may_submit(LAUNCH):
                yield from _pause(backlog, position)
                continue
            limit = 1 if session.dropping else min(2 * backlog.quota, backlog.room)
            launches, at = self._launches.run_records(
                session, records, entry, index + count, at, limit, backlog.stands_still_before
            )
            telemetry.count("launch", launches)
            count += launches
            backlog.quota -= launches
            backlog.room -= launches
            if backlog.standstill.stream is not None:
                paused = backlog.paused
                yield from _pause(backlog, position)
                telemetry.queue_delay.observe(backlog.paused - paused)
        return count

    @staticmethod
    def _full(backlog: Backlog, command: commands_pb2.Command) -> bool:
        """True if the command has device work for a full stream, and the session's queue stands still before it."""
        stream = backlog.session.streams.items.get(command.stream)
        return stream is not None and stream.track.budget <= 0 and backlog.stands_still_before(stream)

    def _open(self, backlog: Backlog, frame: Frame) -> tuple[commands_pb2.Batch, frozenset[int]] | None:
        """Returns the batch and the indices of its commands already answered; None if there is nothing to run."""
        session = backlog.session
        peeked = backlog.peeked.pop(id(frame), None) if backlog.peeked else None
        try:
            batch = device_pb2.ExecuteRequest.FromString(frame.payload).batch if peeked is None else peeked.batch
        except DecodeError:
            self._protocol_error(session, "it is not a valid ExecuteRequest")
            return None
        seq, number, last = batch.seq, frame.id, session.last_seq
        if number and seq != number:
            self._protocol_error(session, f"its seq is {seq}; its frame has {number}")
            return None
        if seq != last + 1:
            if 0 < seq <= last:
                self._device.outbox.repeated(session.channel, number)
            else:
                self._protocol_error(session, f"its seq is {seq}; the next is {last + 1}")
            return None
        session.last_seq = seq
        self._device.telemetry.batches += 1
        backlog.batch = batch
        return batch, peeked.answered if peeked is not None else _NONE

    def call(self, backlog: Backlog, frame: Frame) -> Iterator[None]:
        """Runs a single call; yields until the session may run it."""
        try:
            command = commands_pb2.Command.FromString(frame.payload)
        except DecodeError:
            refusal = Refusal(Reason.MALFORMED_MESSAGE, "the call's payload is not a valid Command")
            self._commands.result(backlog.session, frame.id, commands_pb2.Result(error=refusal.to_status()))
            return
        kind = command.WhichOneof("kind") or ""
        need, session = NEEDS.get(kind, NOTHING), backlog.session
        while backlog.quota <= 0 or (
            not backlog.may_submit(need) and not (session.dropping and _dropped(backlog, command, kind))
        ):
            yield
        self._commands.command(session, command, kind, call=frame.id)
        backlog.quota -= 1
        if need:
            backlog.room -= 1

    def look_ahead(self, backlog: Backlog, frame: Frame) -> None:
        """Answers the event queries of a batch that may have to wait as soon as the events have been recorded.

        A client with that much work under way waits for the events of its earlier work behind its later work; without
        early answers the device would run out of work before the client receives them. Every waiting batch before this
        one must have been decoded as well.
        """
        if len(frame.payload) > LOOK_AHEAD_BYTES or len(backlog.peeked) != len(backlog.frames):
            return
        session = backlog.session
        try:
            batch = device_pb2.ExecuteRequest.FromString(frame.payload).batch
        except DecodeError:
            return
        if batch.seq != session.last_seq + len(backlog.peeked) + 1:
            return  # the batch was sent twice, or its number is out of order
        before = [peeked.changes for peeked in backlog.peeked.values()]
        if backlog.work is not None and backlog.batch is not None:
            before.append(_changes(backlog.batch.commands[backlog.next_index :]))
        changes = _changes(batch.commands)
        known_changes = [earlier for earlier in before if earlier is not None]
        answered: list[int] = []
        if changes is not None and len(known_changes) == len(before):
            for position, command in enumerate(batch.commands):
                if command.WhichOneof("kind") == "query_event" and command.request:
                    known_changes.append(_changes(batch.commands[:position]) or {})
                    if self._answer(backlog, command, known_changes):
                        answered.append(position)
                    known_changes.pop()
        backlog.peeked[id(frame)] = PeekedBatch(batch, changes, frozenset(answered))

    def _answer(self, backlog: Backlog, command: commands_pb2.Command, before: list[Changes]) -> bool:
        """Answers an event query now, or registers it to be answered when the event is recorded.

        Returns False if neither is possible yet. `before` lists the changes that earlier commands make to events.
        """
        session = backlog.session
        stream = session.streams.get(command.stream)
        if stream is None or stream.capture is not None:
            return False
        handle = command.query_event.event
        recorded = [changes[handle] for changes in before if handle in changes]
        if recorded == [True]:
            backlog.awaited_queries.setdefault(handle, []).append(command)
            return True
        event = session.events.get(handle)
        if recorded or event is None or event.event is None:
            return False
        self._commands.command(session, command, "query_event")
        return True

    def _protocol_error(self, session: DeviceSession, fault: str) -> None:
        refusal = Refusal(
            Reason.MALFORMED_MESSAGE,
            f"the message is not a valid batch: {fault}; none of its commands was executed",
            fix="send ExecuteRequest messages with batches numbered from 1",
            details={"last_seq": session.last_seq},
        )
        event = device_pb2.Event(protocol_error=refusal.to_status())
        response = device_pb2.ExecuteResponse(event=event)
        self._device.outbox.put(Kind.RESPONSE, response.SerializeToString(), channel=session.channel)
        self._device.outbox.refused(session.channel, fault)


def _dropped(backlog: Backlog, command: commands_pb2.Command, kind: str) -> bool:
    """True if a cancellation covers the next command, so that it need not wait for room or a time slice."""
    if backlog.session.cancellations.find(kind, command.stream, command.request) is None:
        return False
    backlog.need = NOTHING
    backlog.standstill.stream = None
    return True


def _pause(backlog: Backlog, position: int) -> Iterator[None]:
    """Yields once before the command at this place of its batch."""
    backlog.next_index = position
    began = time.perf_counter_ns()
    yield
    backlog.paused += time.perf_counter_ns() - began


def _changes(commands: Iterable[commands_pb2.Command]) -> Changes | None:
    """Returns the effects of the commands on events; None if the commands affect later commands in other ways."""
    events: Changes = {}
    for command in commands:
        kind = command.WhichOneof("kind") or ""
        if kind in CHANGING:
            return None
        if kind == "record_event":
            events[command.record_event.event] = command.record_event.event not in events
        elif kind == "destroy_event":
            events[command.destroy_event.event] = False
    return events
