"""One session's trace: its records, and their times on the device.

A trace sees a command through its `TraceRecord`: made with the command's origin, entered while the command is tried,
begun by `Device.begin` when it gives work to a track, left when it has run. Between the two events that frame its work
lies the command's time on the device.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hearth_proto.v1 import commands_pb2
from hearthd.device.context import Device
from hearthd.device.marking import Activity, Marks
from hearthd.device.nodes import Dim
from hearthd.device.operation import Origin
from hearthd.device.policy.device_clock import DeviceClock
from hearthd.device.policy.launch_plan import Plan
from hearthd.device.server import Event, Stream
from hearthd.device.tables import Record
from hearthd.device.tracks import Track

MAX_BYTES = 24 << 20
"""What a trace keeps, as it travels: one answer has to fit a message, of which the client takes 32 MiB."""

EVENT_BYTES = 112
"""A TraceEvent without its names, generously."""

MAX_NAME = 1024

RENEW_NS = 2_000_000_000
"""After so long the device clock gets a new reference; 32-bit floats then still resolve a quarter of a microsecond."""


class Trace:
    """One session's trace while it runs, and until it has been reported."""

    def __init__(
        self,
        device: Device,
        clock_stream: Stream,
        limit: int,
        marks: Sequence[Marks],
        activity: Activity | None,
        numbers: Iterator[int],
    ) -> None:
        self.device = device
        self.marks = marks
        self.records: list[TraceRecord] = []
        self.dropped = 0
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
        self._clock = DeviceClock()
        self._segment = self._clock.renew(0)
        self._anchored = False
        asked = time.perf_counter_ns()
        self._reference: Event | None = device.server.record(clock_stream, timing=True)
        device.tracks.watch(self._reference, partial(self._anchor, asked))

    def record(self, origin: Origin) -> Record | None:
        if len(self.records) >= self._limit or self._room <= 0:
            self.dropped += 1
            return None
        record = TraceRecord(self, origin, next(self._numbers))
        self.records.append(record)
        return record

    def forget(self, record: TraceRecord) -> None:
        if self.records and self.records[-1] is record:
            self.records.pop()
        elif record in self.records:
            self.records.remove(record)

    def kept(self, size: int) -> None:
        """A record is whole, and takes so many bytes in the answer."""
        self._room -= size

    def finish(self, finished: Callable[[], None]) -> None:
        """`finished` when every record is whole. Its commands have all been tried by now."""
        if not self._over:
            self._finished = finished
            self._look()

    def close(self) -> None:
        """Nobody wants to know any more; events go back as they come."""
        self.finish(lambda: None)

    # ---- times ----

    def measure(self, record: TraceRecord, track: Track) -> None:
        """Both events of a record have been recorded on the track."""
        queue = self._under_way.setdefault(track.index, deque())
        queue.append(record)
        if self._anchored and track.index not in self._watching:
            self._watch(track.index)

    def _anchor(self, asked: int) -> None:
        self._anchored = True
        self._clock.observe(self._segment, 0, 0, asked, time.perf_counter_ns())
        for index in list(self._under_way):
            self._watch(index)
        self._look()

    def _watch(self, index: int) -> None:
        """One event a track is watched, the oldest: those behind it are no earlier."""
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
        self._look()

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

    def _look(self) -> None:
        """Whether it is over."""
        if self._finished is None or self._over or self._under_way or not self._anchored:
            return
        self._over = True
        finished = self._finished
        if self._reference is not None:
            self.device.tracks.retire(self._reference)
            self._reference = None
        if self._activity is not None:
            self._activity.stop()
        finished()

    # ---- the report ----

    def result(self) -> commands_pb2.TraceResult:
        """All of it. Any thread, once it is finished."""
        result = commands_pb2.TraceResult(dropped=self.dropped, epoch_ns=self.epoch_ns)
        references = self._clock.references()
        for record in self.records:
            record.write(result.events.add(), self.began_ns, references)
        if self._activity is not None:
            self._add_kernels(result, self._activity)
        return result

    def _add_kernels(self, result: commands_pb2.TraceResult, activity: Activity) -> None:
        commands = {record.number: record for record in self.records}
        try:
            seen = activity.collect(commands)
        except Exception as error:
            print(f"kernel activity was not collected: {type(error).__name__}: {error}", file=sys.stderr)
            return
        room = self._room
        for kernel in seen:
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
                    grid=_dim3(kernel.grid),
                    block=_dim3(kernel.block),
                    registers=kernel.registers,
                    shared_bytes=kernel.shared_bytes,
                )
            )


class TraceRecord:
    """One command. Host times are `time.perf_counter_ns`, device times count from the segment's reference."""

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
        self._track: Track | None = None
        self._origin: Origin | None = origin
        self._outer: Record | None = None

    # ---- see tables.Record ----

    def enter(self) -> None:
        self._outer = self._device.record
        self._device.record = self
        if self._origin is not None:
            for mark in self._trace.marks:
                mark.push(self._origin.name, self.number)

    def begin(self, track: Track, size: int, plan: Plan | None) -> None:
        if self.start is None:
            self.submitted_ns = time.perf_counter_ns()
            self._track = track
            self.start = self._device.server.record(track.stream, timing=True)
        self.size += size
        if plan is not None:
            self.grid, self.block = plan.grid, plan.block

    def leave(self, done: bool) -> None:
        self._device.record = self._outer
        self._outer = None
        for mark in reversed(self._trace.marks):
            mark.pop()
        if done:
            self.settle()

    def failed(self, reason: str) -> None:
        self.error = reason
        if self._device.record is not self:
            self.settle()

    def settle(self) -> None:
        origin, self._origin = self._origin, None
        if origin is None:
            return
        self.name, _, kernel = origin.name.partition(" ")
        self.kernel = kernel[:MAX_NAME]
        self._trace.kept(EVENT_BYTES + len(self.kernel))
        if self._track is None:
            self.submitted_ns = time.perf_counter_ns()
            return
        self.end = self._device.server.record(self._track.stream, timing=True)
        self._trace.measure(self, self._track)

    def drop(self) -> None:
        self._origin = None
        self._trace.forget(self)

    def write(self, event: commands_pb2.TraceEvent, began_ns: int, references: Sequence[int]) -> None:
        """Times from the trace's beginning."""
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
            event.grid.CopyFrom(_dim3(self.grid))
            event.block.CopyFrom(_dim3(self.block))
        event.error = self.error


def _dim3(dim: Dim) -> commands_pb2.Dim3:
    return commands_pb2.Dim3(x=dim[0], y=dim[1], z=dim[2])
