"""Trace record: one command in a trace.

A record is created with the command's origin, entered while the command is tried, begun by `DeviceContext.begin` when
the command submits work to a track, and left when the command has run. Its device time is measured between two events
around the work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.backend.resources import Event
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Origin
from hearthd.device.profiling.annotations import RangeMarker
from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.session.observer import Record
from hearthd.device.streams.stream_pool import PooledStream

EVENT_BYTES = 112
"""Upper estimate of the encoded size of a TraceEvent without its names, in bytes."""

MAX_NAME = 1024


class Recording(Protocol):
    """Interface of the trace (`hearthd.device.profiling.recorder.Trace`) for its records."""

    device: DeviceContext
    marks: Sequence[RangeMarker]
    dropped: int
    """Number of commands that arrived when the trace was full."""

    def measure(self, record: TraceRecord, track: PooledStream) -> None:
        """Records that both events of a record have been recorded on the track."""
        ...

    def count_record(self, size: int) -> None:
        """Counts a complete record, which takes `size` bytes in the answer."""
        ...

    def forget(self, record: TraceRecord) -> None:
        """Removes the record."""
        ...


class TraceRecord:
    """Record of one command.

    Host times are on the clock of `time.perf_counter_ns`; device times count from the reference event of the segment.
    All are in nanoseconds.
    """

    __slots__ = (
        "_device", "_origin", "_outer", "_trace", "_track", "block", "device_ns", "end", "error", "grid", "index",
        "kernel", "name", "number", "queued_ns", "segment", "seq", "size", "start", "started", "stream", "submitted_ns",
    )  # fmt: skip

    def __init__(self, trace: Recording, origin: Origin, number: int) -> None:
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

    # ---- `hearthd.device.session.observer.Record` ----

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
        """Completes the record: its name, and the second event behind its work. Further calls have no effect."""
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


class DroppedRecord:
    """Stands for a command that arrived when the trace was full: it is only counted."""

    __slots__ = ("_trace",)

    def __init__(self, trace: Recording) -> None:
        self._trace = trace

    def enter(self) -> None:
        """Has no effect: the command is not timed."""
        pass

    def begin(self, track: PooledStream, size: int, plan: LaunchPlan | None) -> None:
        """Has no effect: the command is not timed."""
        pass

    def leave(self, done: bool) -> None:
        """Has no effect: the command is not timed."""
        pass

    def failed(self, reason: str) -> None:
        """Has no effect: the reason is not stored."""
        pass

    def settle(self) -> None:
        """Has no effect: there is nothing to complete."""
        pass

    def drop(self) -> None:
        """Subtracts the command from the trace's number of dropped records."""
        self._trace.dropped -= 1


def dim3(dim: Dim) -> commands_pb2.Dim3:
    """Returns the dimensions, in the order x, y, z, as a message."""
    return commands_pb2.Dim3(x=dim[0], y=dim[1], z=dim[2])
