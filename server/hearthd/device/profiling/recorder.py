"""Trace of one session: its records of commands, and their times on the device."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.backend.resources import Event, Stream
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Origin
from hearthd.device.profiling.annotations import KernelActivitySource, KernelTiming, RangeMarker
from hearthd.device.profiling.device_clock import DeviceClock
from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.session.observer import Record
from hearthd.device.streams.stream_pool import PooledStream

EVENT_BYTES = 112
"""Upper estimate of the encoded size of a TraceEvent without its names, in bytes."""

MAX_NAME = 1024

MAX_BYTES = 16 << 20
"""Limit of the encoded size of a trace, in bytes: the answer must fit into one message, and the client accepts messages
of up to 32 MiB."""

RENEW_NS = 2_000_000_000
"""Interval, in nanoseconds, at which the device clock gets a new reference; 32-bit floats then still resolve a quarter
of a microsecond."""


class Trace:
    """Trace of one session, from its start until it has been reported."""

    def __init__(
        self,
        device: DeviceContext,
        clock_stream: Stream,
        limit: int,
        marks: Sequence[RangeMarker],
        activity: KernelActivitySource | None,
        numbers: Iterator[int],
    ) -> None:
        self.device = device
        self.marks = marks
        self.records: list[TraceRecord] = []
        self.dropped = 0
        """Number of commands that arrived when the trace was full."""
        self.epoch_ns = time.time_ns()
        self.began_ns = time.perf_counter_ns()
        self._activity = activity
        self._numbers = numbers
        self._limit = limit
        self._room = MAX_BYTES
        self._under_way: dict[int, deque[TraceRecord]] = {}
        self._watching: set[int] = set()
        self._finished: Callable[[], None] | None = None
        self._over = False
        self._reported = False
        self._clock = DeviceClock()
        self._segment = self._clock.renew(0)
        self._anchored = False
        self._traced = activity.start() if activity is not None else 0
        """Key of the trace of kernels; not used without `activity`."""
        submitted_ns = time.perf_counter_ns()
        try:
            self._reference: Event | None = device.server.record(clock_stream, timing=True)
        except BaseException:
            self._stop_activity()
            raise
        device.tracks.watch(self._reference, partial(self._anchor, submitted_ns))

    def record(self, origin: Origin) -> Record:
        """Returns the record of a command. If the trace is full, the command is only counted."""
        if len(self.records) >= self._limit or self._room <= 0:
            self.dropped += 1
            return DroppedRecord(self)
        record = TraceRecord(self, origin, next(self._numbers))
        self.records.append(record)
        return record

    def forget(self, record: TraceRecord) -> None:
        """Removes the record from the trace; no effect if it is not there."""
        if self.records and self.records[-1] is record:
            self.records.pop()
        elif record in self.records:
            self.records.remove(record)

    def count_record(self, size: int) -> None:
        """Counts a complete record, which takes `size` bytes in the answer."""
        self._room -= size

    def finish(self, finished: Callable[[], None]) -> None:
        """Calls `finished` when every record is complete. All commands of the trace have been tried by now."""
        if not self._over:
            self._reported = True
            self._finished = finished
            self._finish_if_complete()

    def close(self) -> None:
        """Ends a trace that will not be reported; its events are released when they complete."""
        if not self._over:
            self._reported = False
            self._finished = lambda: None
            self._finish_if_complete()

    # ---- times ----

    def measure(self, record: TraceRecord, track: PooledStream) -> None:
        """Records that both events of a record have been recorded on the track."""
        queue = self._under_way.setdefault(track.index, deque())
        queue.append(record)
        if self._anchored and track.index not in self._watching:
            self._watch(track.index)

    def _anchor(self, submitted_ns: int) -> None:
        self._anchored = True
        self._clock.observe(self._segment, 0, 0, submitted_ns, time.perf_counter_ns())
        for index in list(self._under_way):
            self._watch(index)
        self._finish_if_complete()

    def _watch(self, index: int) -> None:
        """Watches the oldest event of a track; later events do not complete earlier."""
        end = self._under_way[index][0].end
        assert end is not None
        self._watching.add(index)
        self.device.tracks.watch(end, partial(self._ended, index))

    def _ended(self, index: int) -> None:
        self._watching.discard(index)
        queue = self._under_way[index]
        while queue:
            end = queue[0].end
            assert end is not None
            if not self.device.server.done(end):
                self._watch(index)
                return
            self._measure(queue.popleft())
        del self._under_way[index]
        self._finish_if_complete()

    def _measure(self, record: TraceRecord) -> None:
        server = self.device.server
        start, end, reference = record.start, record.end, self._reference
        assert start is not None and end is not None and reference is not None
        started = server.elapsed_ns(reference, start)
        record.device_ns = max(0, server.elapsed_ns(start, end))
        record.started, record.segment = started, self._segment
        self._clock.observe(
            self._segment, started, started + record.device_ns, record.submitted_ns, time.perf_counter_ns()
        )
        record.start = record.end = None
        self.device.tracks.retire(end)
        if started > RENEW_NS:
            server.release_event(reference)
            self._reference, self._segment = start, self._clock.renew(started)
        else:
            server.release_event(start)

    def _finish_if_complete(self) -> None:
        """Calls the callback of `finish` if the trace is complete."""
        if self._finished is None or self._over or self._under_way or not self._anchored:
            return
        self._over = True
        finished = self._finished
        if self._reference is not None:
            self.device.tracks.retire(self._reference)
            self._reference = None
        self._stop_activity()
        finished()

    def _stop_activity(self) -> None:
        if self._activity is not None:
            self._activity.stop()
            if not self._reported:
                self._activity.discard(self._traced)

    # ---- report ----

    def result(self) -> commands_pb2.TraceResult:
        """Returns the whole trace. May be called on any thread after the trace has finished."""
        commands = {record.number: record for record in self.records}
        kernels = self._collect(commands)
        result = commands_pb2.TraceResult(dropped=self.dropped, epoch_ns=self.epoch_ns)
        references = self._clock.references()
        for record in self.records:
            record.write(result.events.add(), self.began_ns, references)
        self._add_kernels(result, commands, kernels)
        return result

    def _collect(self, numbers: Collection[int]) -> list[KernelTiming]:
        if self._activity is None:
            return []
        try:
            return self._activity.collect(self._traced, numbers)
        except Exception as error:
            print(f"kernel activity was not collected: {type(error).__name__}: {error}", file=sys.stderr)
            return []

    def _add_kernels(
        self, result: commands_pb2.TraceResult, commands: Mapping[int, TraceRecord], kernels: Sequence[KernelTiming]
    ) -> None:
        room = self._room
        for kernel in kernels:
            command = commands[kernel.number]
            room -= EVENT_BYTES + len(kernel.name)
            if room < 0:
                result.dropped += 1
                continue
            result.kernels.append(
                commands_pb2.KernelActivity(
                    name=kernel.name[:MAX_NAME],
                    stream=command.stream,
                    seq=command.seq,
                    index=command.index,
                    started_ns=kernel.started_ns - self.began_ns,
                    ended_ns=kernel.ended_ns - self.began_ns,
                    grid=dim3(kernel.grid),
                    block=dim3(kernel.block),
                    registers=kernel.registers,
                    shared_bytes=kernel.shared_bytes,
                )
            )


class TraceRecord(Record):
    """Record of one command.

    A record is created with the command's origin, entered while the command is tried, begun by `DeviceContext.begin`
    when the command submits work to a track, and left when the command has run. Its device time is measured between two
    events around the work.

    Host times are on the clock of `time.perf_counter_ns`; device times count from the reference event of the segment.
    All are in nanoseconds.
    """

    __slots__ = (
        "_device", "_origin", "_outer", "_trace", "_track", "block", "device_ns", "end", "error", "grid", "index",
        "kernel", "name", "number", "queued_ns", "segment", "seq", "size", "start", "started", "stream", "submitted_ns",
    )  # fmt: skip

    def __init__(self, trace: Trace, origin: Origin, number: int) -> None:
        self.queued_ns = time.perf_counter_ns()
        self.number = number
        self.stream = origin.stream.handle
        self.seq = origin.seq
        self.index = origin.index
        self.name = ""
        self.kernel = ""
        self.grid: Dim | None = None
        self.block: Dim | None = None
        self.size = 0
        self.error = ""
        self.submitted_ns = 0
        self.started = 0
        self.device_ns = 0
        self.segment = -1
        self.start: Event | None = None
        self.end: Event | None = None
        self._trace = trace
        self._device = trace.device
        self._track: PooledStream | None = None
        self._origin: Origin | None = origin
        self._outer: Record | None = None

    def enter(self) -> None:
        """Makes this the current record of the device, and begins a range for the command."""
        self._outer = self._device.record
        self._device.record = self
        if self._origin is not None:
            for mark in self._trace.marks:
                mark.push(self._origin.name, self.number)

    def begin(self, track: PooledStream, size: int, plan: LaunchPlan | None) -> None:
        """Records the first event, before the command's work on the track; later calls only add their `size`."""
        if self.start is None:
            self.submitted_ns = time.perf_counter_ns()
            self._track = track
            self.start = self._device.server.record(track.stream, timing=True)
        self.size += size
        if plan is not None:
            self.grid, self.block = plan.grid, plan.block

    def leave(self, done: bool) -> None:
        """Restores the previous current record and ends the range; settles the record if the command is `done`."""
        self._device.record = self._outer
        self._outer = None
        for mark in reversed(self._trace.marks):
            mark.pop()
        if done:
            self.settle()

    def failed(self, reason: str) -> None:
        """Stores the reason. Settles the record unless the command is being tried, in which case `leave` does that."""
        self.error = reason
        if self._device.record is not self:
            self.settle()

    def settle(self) -> None:
        """Completes the record: its name, and the second event after its work. Further calls have no effect."""
        origin, self._origin = self._origin, None
        if origin is None:
            return
        self.name, _, kernel = origin.name.partition(" ")
        self.kernel = kernel[:MAX_NAME]
        self._trace.count_record(EVENT_BYTES + len(self.kernel))
        if self._track is None:
            self.submitted_ns = time.perf_counter_ns()
            return
        self.end = self._device.server.record(self._track.stream, timing=True)
        self._trace.measure(self, self._track)

    def drop(self) -> None:
        """Removes the record from the trace."""
        self._origin = None
        self._trace.forget(self)

    def write(self, event: commands_pb2.TraceEvent, began_ns: int, references: Sequence[int]) -> None:
        """Writes the record to the event, with times in nanoseconds since the start of the trace."""
        event.name = self.name
        event.stream = self.stream
        event.seq = self.seq
        event.index = self.index
        event.queued_ns = self.queued_ns - began_ns
        event.submitted_ns = self.submitted_ns - began_ns
        started = references[self.segment] + self.started if self.segment >= 0 else self.submitted_ns
        event.started_ns = started - began_ns
        event.ended_ns = started + self.device_ns - began_ns
        event.bytes = self.size
        event.kernel = self.kernel
        if self.grid is not None and self.block is not None:
            event.grid.CopyFrom(dim3(self.grid))
            event.block.CopyFrom(dim3(self.block))
        event.error = self.error


class DroppedRecord(Record):
    """The record of a command that arrived when the trace was full: it is only counted."""

    __slots__ = ("_trace",)

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def drop(self) -> None:
        """Subtracts the command from the trace's number of dropped records."""
        self._trace.dropped -= 1


def dim3(dim: Dim) -> commands_pb2.Dim3:
    """Returns the dimensions, in the order x, y, z, as a message."""
    return commands_pb2.Dim3(x=dim[0], y=dim[1], z=dim[2])
