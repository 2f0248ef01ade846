"""Prepared launches: a list that is checked and bound once, and then run by one small command.

A run needs no lookups, only the ordering of streams, once for the list, and the driver calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hearth_proto.launches import HEADER
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.graphs.capture import check_record, uses_of
from hearthd.device.graphs.repeat import MAX_NAMED, LaunchProgram, ProgramLaunch, Rounds, check_count
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.holdings import Holdings, Keepers
from hearthd.device.launch.idle_load import LaunchMemoryWait
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.operation import Operation, Origin, destruction
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.module import ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream

MAX_LAUNCHES = 65_536
"""Most launches in one list, counting each iteration."""

MAX_LISTED = 16
"""Most failures of a list that its refusal names."""


class PreparedEntry(LaunchProgram):
    """A client's list of launches; `launches` contains each launch once per iteration."""

    __slots__ = ("launches", "seconds")

    def __init__(self, handle: int, holdings: Holdings) -> None:
        super().__init__(handle, holdings)
        self.launches: tuple[BoundLaunch, ...] = ()
        self.seconds: tuple[float, ...] = ()
        """Time limit of each launch, in seconds; empty if no launch has a limit."""

    @property
    def name(self) -> str:
        """Name of the list in messages."""
        return f"prepared list {self.handle}"

    @property
    def empty(self) -> bool:
        """True if the list has no launches."""
        return not self.launches

    @property
    def cost(self) -> int:
        """Always 1, because a round of a list is a single launch."""
        return 1

    @property
    def names(self) -> list[str]:
        """Names of the kernels of the last `MAX_NAMED` launches, each once."""
        return list(dict.fromkeys(bound.plan.name for bound in self.launches[-MAX_NAMED:]))


class PreparedCommands:
    """Executes the commands of prepared lists. Device-handle thread only."""

    def __init__(self, device: DeviceContext, binder: Binder, watchdog: Watchdog, keepers: Keepers) -> None:
        self._device = device
        self._binder = binder
        self._watchdog = watchdog
        self._keepers = keepers

    def prepare(self, origin: Origin, command: commands_pb2.Prepare) -> Operation:
        """Prepares a list.

        A list that cannot be prepared keeps its handle, with the reason, until the handle is destroyed.
        """
        session = origin.session
        session.prepared.check_new(command.prepared)
        entry = PreparedEntry(command.prepared, Holdings(session, self._keepers))
        session.prepared.add(command.prepared, entry)
        try:
            parsed = self._parse(session, entry, command.launches)
        except Refusal as refusal:
            entry.error = _not_prepared(entry, refusal)
            raise
        functions = dict.fromkeys(resolved.entry for resolved in parsed)
        waits = [LaunchMemoryWait(self._device, session, function) for function in functions]
        modules = dict.fromkeys(function.module for function in functions)
        buffers: dict[Buffer, None] = {}
        for resolved in parsed:
            written, read = resolved.split()
            buffers.update(dict.fromkeys((*written, *read)))
        entry.unsettled += 1
        operation = Operation(
            origin,
            partial(self._prepare, origin, entry, parsed, waits, tuple(modules)),
            writes=(entry,),
            reads=(*modules, *buffers),
        )
        operation.on_failure = partial(self._failed, entry, waits)
        return operation

    def _parse(self, session: DeviceSession, entry: PreparedEntry, data: bytes) -> list[ResolvedRecord]:
        """Returns the records of the list with resolved handles. Raises one Refusal that lists all faulty records."""
        resolved: list[ResolvedRecord] = []
        refusals: dict[int, Refusal] = {}
        records = split_records(data)
        for index, record in enumerate(records):
            try:
                parsed = self._binder.parse(session, record)
                check_record(parsed)
                resolved.append(parsed)
            except Refusal as refusal:
                refusals[index] = refusal
        if refusals:
            raise _refusal(entry, len(records), refusals)
        return resolved

    def _prepare(
        self,
        origin: Origin,
        entry: PreparedEntry,
        parsed: Sequence[ResolvedRecord],
        waits: Sequence[LaunchMemoryWait],
        modules: Sequence[ModuleEntry],
    ) -> bool:
        if any(module.pending for module in modules):
            return False
        bound: list[BoundLaunch] = []
        refusals: dict[int, Refusal] = {}
        for index, resolved in enumerate(parsed):
            try:
                bound.append(self._binder.bind(resolved))
            except Refusal as refusal:
                refusals[index] = refusal
        if refusals:
            raise _refusal(entry, len(parsed), refusals)
        if not all(wait.ready() for wait in waits):
            return False
        total = sum(launch.plan.iterations for launch in bound)
        if total > MAX_LAUNCHES:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{entry.name} has {total} launches, iterations counted; the maximum is {MAX_LAUNCHES}",
                fix="prepare a shorter list, and launch it several times",
                details={"prepared": entry.handle, "launches": total, "max_launches": MAX_LAUNCHES},
            )
        for launch in bound:
            entry.holdings.add(uses_of(launch))
        entry.launches = tuple(launch for launch in bound for _ in range(launch.plan.iterations))
        default = origin.session.launch_timeout
        if default or any(launch.plan.timeout_ns for launch in bound):
            entry.seconds = tuple(launch.plan.timeout_ns / 1e9 or default for launch in entry.launches)
        entry.unsettled -= 1
        origin.reply()
        return True

    def launch(self, origin: Origin, command: commands_pb2.LaunchPrepared) -> Operation:
        """Launches the list on the command's stream, regardless of the streams in its records."""
        entry: PreparedEntry = origin.session.prepared.find(command.prepared)
        check_count(command.count, entry.name)
        entry.check()
        if origin.capture is not None:
            return ProgramLaunch(origin, entry, partial(self._record, origin, entry, command.count))
        return ProgramLaunch(origin, entry, _Run(self._device, self._watchdog, origin.stream, entry, command.count).run)

    @staticmethod
    def _record(origin: Origin, entry: PreparedEntry, count: int) -> bool:
        """Adds the launches as nodes to the graph that is being captured."""
        entry.check()
        assert origin.capture is not None
        origin.capture.add_launches(entry.launches, count)
        return True

    def destroy(self, origin: Origin, command: commands_pb2.DestroyPrepared) -> Operation:
        """Destroys the handle now; earlier launches still run."""
        entry: PreparedEntry = origin.session.prepared.pop(command.prepared)
        return destruction(origin, entry.holdings.release, (entry,))

    def close(self, session: DeviceSession) -> None:
        """Releases the buffers and modules that the session's lists hold."""
        for entry in session.prepared.items.values():
            entry.holdings.release()

    @staticmethod
    def _failed(entry: PreparedEntry, waits: Sequence[LaunchMemoryWait], refusal: Refusal) -> None:
        for wait in waits:
            wait.end()
        entry.unsettled -= 1
        entry.error = _not_prepared(entry, refusal)


class _Run:
    """Runs a list `count` times, for one command."""

    def __init__(
        self, device: DeviceContext, watchdog: Watchdog, stream: LogicalStream, entry: PreparedEntry, count: int
    ) -> None:
        self._device = device
        self._watchdog = watchdog
        self._stream = stream
        self._entry = entry
        self._count = count
        self._at = 0
        self._rounds: Rounds | None = None

    def run(self) -> bool:
        entry = self._entry
        if self._rounds is None:  # the number of launches is not known earlier
            entry.check()
            rounds = self._count * len(entry.launches)
            limit = self._next_limit if entry.seconds else None
            self._rounds = Rounds(self._device, self._watchdog, self._stream, entry, rounds, self._issue, limit=limit)
        return self._rounds.run()

    def _next_limit(self) -> tuple[str, float]:
        return self._entry.launches[self._at].plan.name, self._entry.seconds[self._at]

    def _issue(self, count: int) -> None:
        launches, at, stream = self._entry.launches, self._at, self._stream.track.stream
        launch, telemetry = self._device.server.launch, self._device.telemetry
        telemetry.prepared_launches += count
        while count:
            chunk = launches[at : at + count]
            for bound in chunk:
                plan = bound.plan
                launch(plan.function, plan.grid, plan.block, plan.shared_mem, stream, bound.params, bound.attributes)
                telemetry.launched += plan.weight
            count -= len(chunk)
            at = (at + len(chunk)) % len(launches)
        self._at = at


def split_records(data: bytes) -> list[bytes]:
    """Divides packed records. Raises Refusal(MALFORMED_MESSAGE) if a record extends beyond the data."""
    records: list[bytes] = []
    at = 0
    while at < len(data):
        remaining = len(data) - at
        length = int.from_bytes(data[at : at + 4], "little") if remaining >= HEADER.size else 0
        if length < HEADER.size or length & 7 or length > remaining:
            raise Refusal(
                Reason.MALFORMED_MESSAGE,
                f"record {len(records)} of a prepared list has a length of {length} bytes; {remaining} are left",
                fix="pack records as described in hearth_proto/launches.py",
                details={"record": len(records)},
            )
        records.append(data[at : at + length])
        at += length
    return records


def _refusal(entry: PreparedEntry, records: int, refusals: dict[int, Refusal]) -> Refusal:
    """Returns the refusal of a list with its faults, by the index of each launch.

    The first fault determines the reason.
    """
    index, first = next(iter(refusals.items()))
    listed = "; ".join(f"launch {number}: {refusal.message}" for number, refusal in list(refusals.items())[:MAX_LISTED])
    more = f"; and {len(refusals) - MAX_LISTED} more" if len(refusals) > MAX_LISTED else ""
    return Refusal(
        first.reason,
        f"{len(refusals)} of the {records} launches of {entry.name} cannot be prepared: {listed}{more}",
        fix=first.fix,
        details={**first.details, "prepared": entry.handle, "failures": len(refusals), "index": index},
    )


def _not_prepared(entry: PreparedEntry, refusal: Refusal) -> Refusal:
    return Refusal(
        refusal.reason, f"{entry.name} was not prepared: {refusal.message}", fix=refusal.fix, details=refusal.details
    )
