"""Decodes the frames of a session that contain commands, and answers event queries ahead of their batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.device.scheduler.backlog import Backlog, Changes, PeekedBatch, Work
from hearthd.device.scheduler.batch_run import BatchRun, CallRun, Runners
from hearthd.device.session.session import DeviceSession

LOOK_AHEAD_BYTES = 64 << 10
"""Largest batch, in bytes, that is decoded before its time slice: decoding takes time that belongs to other
sessions."""

_NONE: frozenset[int] = frozenset()

CHANGING = frozenset({"begin_capture", "end_capture", "create_stream", "destroy_stream"})
"""Commands that decide the outcome of later commands. No event query after one of them is answered early."""


class Arrivals:
    """Decodes frames that contain commands. Device-handle thread only."""

    def __init__(self, runners: Runners) -> None:
        self._device = runners.device
        self._runners = runners
        self.handlers: dict[int, Callable[[Backlog, Frame], Work | None]] = {
            Kind.BATCH: self.batch,
            Kind.CALL: self.call,
        }

    def batch(self, backlog: Backlog, frame: Frame) -> Work | None:
        """Returns the batch, ready to be run; None if there is nothing to run."""
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
        return BatchRun(self._runners, backlog, batch.commands, peeked.answered if peeked is not None else _NONE)

    def call(self, backlog: Backlog, frame: Frame) -> Work | None:
        """Returns the single call, ready to be run; None if it is refused."""
        commands = self._runners.commands
        try:
            command = commands_pb2.Command.FromString(frame.payload)
        except DecodeError:
            refusal = Refusal(Reason.MALFORMED_MESSAGE, "the call's payload is not a valid Command")
            commands.result(backlog.session, frame.id, commands_pb2.Result(error=refusal.to_status()))
            return None
        return CallRun(commands, backlog, command, frame.id)

    def look_ahead(self, backlog: Backlog, frame: Frame) -> None:
        """Answers the event queries of a batch that may have to wait as soon as the events have been recorded.

        The queries are about events of earlier work, and are queued after later work of the client; without early
        answers the device would run out of work before the client receives them. Every waiting batch before this one
        must have been decoded as well.
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
        remaining = None if backlog.work is None else backlog.work.remaining
        if remaining is not None:
            before.append(_changes(remaining))
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
        self._runners.commands.command(session, command, "query_event")
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
