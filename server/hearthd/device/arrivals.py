"""Frames of a session as commands, one after the other, stopping where somebody else has to have a turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from google.protobuf.message import DecodeError

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.device.backlog import LAUNCH, NEEDS, NOTHING, Backlog
from hearthd.device.context import Device
from hearthd.device.launch import LaunchCommands
from hearthd.device.tables import BatchEntry, Session


class Commands(Protocol):
    """Who runs them: the executor."""

    def command(
        self,
        session: Session,
        command: commands_pb2.Command,
        *,
        batch: BatchEntry | None = None,
        index: int = 0,
        call: int = 0,
    ) -> None:
        """Runs it, or puts it off until what it needs is there."""
        ...

    def result(self, session: Session, call: int, result: commands_pb2.Result) -> None: ...
    def acknowledge(self, session: Session, entry: BatchEntry) -> None: ...


class Arrivals:
    """Belongs to the device-handle thread. What `batch` and `call` give yields where it may not go on; see
    `Backlog.left` and `Backlog.may`."""

    def __init__(self, device: Device, launches: LaunchCommands, commands: Commands) -> None:
        self._device = device
        self._launches = launches
        self._commands = commands
        self.handlers: dict[int, Callable[[Backlog, Frame], Iterator[None]]] = {
            Kind.BATCH: self.batch,
            Kind.CALL: self.call,
        }

    def batch(self, backlog: Backlog, frame: Frame) -> Iterator[None]:
        """Works a batch off."""
        session = backlog.session
        try:
            batch = device_pb2.ExecuteRequest.FromString(frame.payload).batch
        except DecodeError:
            self._protocol_error(session, "it is no ExecuteRequest")
            return
        if batch.seq <= session.last_seq and batch.seq:
            self._device.outbox.put(Kind.ACK, channel=session.channel)  # sent again: it has run, and holds no place
            return
        if batch.seq != session.last_seq + 1:
            self._protocol_error(session, f"its seq is {batch.seq}; the next is {session.last_seq + 1}")
            return
        session.last_seq = batch.seq
        telemetry = self._device.telemetry
        telemetry.batches += 1
        spent = 0
        began = time.perf_counter_ns()
        entry = BatchEntry(batch.seq)
        session.batches.append(entry)
        index = 0
        for command in batch.commands:
            kind = command.WhichOneof("kind") or ""
            if kind == "launches" and not command.request:
                records, at = command.launches, 0
                while at < len(records):
                    if backlog.left <= 0 or not backlog.may(LAUNCH):
                        spent += time.perf_counter_ns() - began
                        yield
                        began = time.perf_counter_ns()
                        continue
                    most = min(backlog.left, backlog.room)
                    launches, at = self._launches.run_records(session, records, entry, index, at, most)
                    telemetry.count("launch", launches)
                    index += launches
                    backlog.left -= launches
                    backlog.room -= launches
            else:
                need = NEEDS.get(kind, NOTHING)
                while backlog.left <= 0 or not backlog.may(need):
                    spent += time.perf_counter_ns() - began
                    yield
                    began = time.perf_counter_ns()
                self._commands.command(session, command, batch=entry, index=index)
                index += 1
                backlog.left -= 1
                if need:
                    backlog.room -= 1
        entry.left -= 1
        if not entry.left:
            self._commands.acknowledge(session, entry)
        telemetry.batch_execution.observe(spent + time.perf_counter_ns() - began)

    def call(self, backlog: Backlog, frame: Frame) -> Iterator[None]:
        """Works a single call off."""
        try:
            command = commands_pb2.Command.FromString(frame.payload)
        except DecodeError:
            refusal = Refusal(Reason.MALFORMED_MESSAGE, "the call's payload is no Command")
            self._commands.result(backlog.session, frame.id, commands_pb2.Result(error=refusal.to_status()))
            return
        need = NEEDS.get(command.WhichOneof("kind") or "", NOTHING)
        while backlog.left <= 0 or not backlog.may(need):
            yield
        self._commands.command(backlog.session, command, call=frame.id)
        backlog.left -= 1
        if need:
            backlog.room -= 1

    def _protocol_error(self, session: Session, why: str) -> None:
        refusal = Refusal(
            Reason.MALFORMED_MESSAGE,
            f"the message was no valid batch: {why}; nothing of it ran",
            fix="send ExecuteRequest messages with batches numbered from 1",
            details={"last_seq": session.last_seq},
        )
        event = device_pb2.Event(protocol_error=refusal.to_status())
        response = device_pb2.ExecuteResponse(event=event)
        self._device.outbox.put(Kind.RESPONSE, response.SerializeToString(), channel=session.channel)
