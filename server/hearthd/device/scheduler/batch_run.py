"""Execution of a batch and of a single call, which stops wherever other sessions must be allowed to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.launch.commands import LaunchCommands
from hearthd.device.operation import ReplySink
from hearthd.device.scheduler.backlog import LAUNCH, NEEDS, NOTHING, Backlog
from hearthd.device.session.session import BatchEntry, DeviceSession

HEAVY = {"collective": 15, "all_reduce": 15}
"""Extra cost of a command beyond one, in commands. The messages of a collective to its peers are sent at the end of the
loop iteration, so a long queue of collectives must not delay the first message."""

_NO_HANDLER = (None, 0)

InlineHandler = tuple[Callable[[DeviceSession, commands_pb2.Command, BatchEntry, int], bool], int]
"""A function that runs a command of a batch (given the batch's entry and the command's index), and the number of
commands that it submits to the device: 1 or 0. The function returns False, without effect, if the command needs an
origin and an operation (`hearthd.device.operation`)."""


class CommandRunner(ReplySink, Protocol):
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


@dataclass
class Runners:
    """The objects that execute commands."""

    device: DeviceContext
    launches: LaunchCommands
    commands: CommandRunner
    inline_handlers: Mapping[str, InlineHandler]
    """The function that is tried first, by kind of command."""


class BatchRun:
    """A batch under execution. Device-handle thread only."""

    __slots__ = (
        "_answered",
        "_backlog",
        "_began_ns",
        "_commands",
        "_entry",
        "_index",
        "_paused_at_ns",
        "_paused_ns",
        "_position",
        "_record_at",
        "_runners",
        "_stood_still",
    )

    def __init__(
        self, runners: Runners, backlog: Backlog, commands: Sequence[commands_pb2.Command], answered: frozenset[int]
    ) -> None:
        """`answered` lists the positions of commands that have already been answered."""
        self._began_ns = time.perf_counter_ns()
        self._runners = runners
        self._backlog = backlog
        self._commands = commands
        self._answered = answered
        session = backlog.session
        self._entry = BatchEntry(session.last_seq)
        session.batches.append(self._entry)
        self._position = 0
        """Position of the next command in the batch."""
        self._index = 0
        """Index of the next command, in which each packed launch counts."""
        self._record_at = 0
        """Byte offset of the next launch in the packed launches of the next command."""
        self._paused_at_ns = 0
        """Time at which execution paused, in nanoseconds; 0 while it does not."""
        self._paused_ns = 0
        """Nanoseconds for which execution has paused."""
        self._stood_still = False
        """True if execution paused before a launch whose stream is full."""

    @property
    def remaining(self) -> Sequence[commands_pb2.Command]:
        """The commands that have not run, including one that has run in part."""
        return self._commands[self._position :]

    def run(self) -> bool:
        """Runs commands until the session must stop; see `Backlog.quota` and `Backlog.may_submit`.

        Returns True once all commands have run.
        """
        if self._paused_at_ns:
            self._resume()
        commands, position = self._commands, self._position
        count = len(commands)
        while position < count:
            command = commands[position]
            records = command.launches
            # This implies the kind "launches"; WhichOneof would cost as much as a launch.
            if records and not command.request:
                has_run = self._run_records(records)
            else:
                has_run = self._run_command(command, position)
            if not has_run:
                self._position = position
                self._paused_at_ns = time.perf_counter_ns()
                return False
            position += 1
        self._position = position
        runners, entry = self._runners, self._entry
        entry.left -= 1
        if not entry.left:
            runners.commands.acknowledge(self._backlog.session, entry)
        runners.device.telemetry.batch_execution.observe(time.perf_counter_ns() - self._began_ns - self._paused_ns)
        return True

    def _run_command(self, command: commands_pb2.Command, position: int) -> bool:
        """Runs a command other than packed launches. Returns False if the session must stop before it."""
        runners, backlog, answered = self._runners, self._backlog, self._answered
        session, kind = backlog.session, command.WhichOneof("kind") or ""
        handler, cost = runners.inline_handlers.get(kind, _NO_HANDLER)
        if handler is not None and backlog.quota > 0 and backlog.room >= cost and not (answered or session.dropping):
            if handler(session, command, self._entry, self._index):
                backlog.quota -= 1
                backlog.room -= cost
                self._index += 1
                return True
        elif kind == "launches" and not command.request:
            return True  # the field is empty
        if not answered or position not in answered:
            need = NEEDS.get(kind, NOTHING)
            if backlog.quota <= 0 or (
                (not backlog.may_submit(need) or (need and _is_full(backlog, command)))
                and not (session.dropping and _is_dropped(backlog, command, kind))
            ):
                return False
            runners.commands.command(session, command, kind, batch=self._entry, index=self._index)
            backlog.quota -= 1 + HEAVY.get(kind, 0)
            if need:
                backlog.room -= 1
            if kind == "record_event" and backlog.awaited_queries:
                for waiting in backlog.awaited_queries.pop(command.record_event.event, ()):
                    runners.commands.command(session, waiting, "query_event")
        self._index += 1
        return True

    def _run_records(self, records: bytes) -> bool:
        """Runs packed launches, from `_record_at` on. Returns False if the session must stop before one of them."""
        runners, backlog, entry, at = self._runners, self._backlog, self._entry, self._record_at
        session, launches, index = backlog.session, runners.launches, self._index
        size = len(records)
        while at < size:
            if session.dropping and backlog.quota > 0:
                dropped, at = launches.drop_records(session, records, entry, index, at, backlog.quota)
                index += dropped
                backlog.quota -= dropped
                if dropped:
                    continue
            if backlog.quota <= 0 or not backlog.may_submit(LAUNCH):
                break
            limit = 1 if session.dropping else min(2 * backlog.quota, backlog.room)
            launched, at = launches.run_records(session, records, entry, index, at, limit, backlog.stands_still_before)
            runners.device.telemetry.count("launch", launched)
            index += launched
            backlog.quota -= launched
            backlog.room -= launched
            if backlog.standstill.stream is not None:
                self._stood_still = True
                break
        self._index = index
        if at < size:
            self._record_at = at
            return False
        self._record_at = 0
        return True

    def _resume(self) -> None:
        paused = time.perf_counter_ns() - self._paused_at_ns
        self._paused_at_ns = 0
        self._paused_ns += paused
        if self._stood_still:
            self._stood_still = False
            self._runners.device.telemetry.queue_delay.observe(paused)


class CallRun:
    """A single call under execution. Device-handle thread only."""

    __slots__ = ("_backlog", "_call", "_command", "_commands", "_kind")

    def __init__(self, commands: CommandRunner, backlog: Backlog, command: commands_pb2.Command, call: int) -> None:
        self._commands = commands
        self._backlog = backlog
        self._command = command
        self._kind = command.WhichOneof("kind") or ""
        self._call = call

    @property
    def remaining(self) -> None:
        """Always None: a call is no part of a batch."""
        return None

    def run(self) -> bool:
        """Runs the call. Returns False if the session must not run it yet."""
        backlog, kind = self._backlog, self._kind
        need, session = NEEDS.get(kind, NOTHING), backlog.session
        if backlog.quota <= 0 or (
            not backlog.may_submit(need) and not (session.dropping and _is_dropped(backlog, self._command, kind))
        ):
            return False
        self._commands.command(session, self._command, kind, call=self._call)
        backlog.quota -= 1
        if need:
            backlog.room -= 1
        return True


def _is_full(backlog: Backlog, command: commands_pb2.Command) -> bool:
    """True if the command has device work for a full stream, and the session's queue stands still before it."""
    stream = backlog.session.streams.items.get(command.stream)
    return stream is not None and stream.track.budget <= 0 and backlog.stands_still_before(stream)


def _is_dropped(backlog: Backlog, command: commands_pb2.Command, kind: str) -> bool:
    """True if a cancellation covers the next command, so that it need not wait for room or a time slice."""
    cancellations = backlog.session.cancellations
    if cancellations.find(kind, command.stream, command.request) is None:
        return False
    if kind in ("write", "read") and cancellations.has_begun(getattr(command, kind).split.number):
        return False
    backlog.need = NOTHING
    backlog.standstill.stream = None
    return True
