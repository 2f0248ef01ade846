"""Trace of one session: its records, and their times on the device."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import Event, Stream
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Origin
from hearthd.device.profiling.annotations import KernelActivitySource, KernelTiming, RangeMarker
from hearthd.device.profiling.device_clock import DeviceClock
from hearthd.device.profiling.trace_record import EVENT_BYTES, MAX_NAME, DroppedRecord, TraceRecord, dim3
from hearthd.device.session.observer import Record
from hearthd.device.streams.stream_pool import PooledStream


@dataclass(frozen=True)
class TraceLimits:
    """Limits of every trace, whatever its request says."""

    max_bytes: int = 16 << 20
    """Limit of the encoded size of a trace, in bytes: the answer must fit into one message, and the client accepts
    messages of up to 32 MiB."""
    renew_ns: int = 2_000_000_000
    """Interval, in nanoseconds, at which the device clock gets a new reference; 32-bit floats then still resolve a
    quarter of a microsecond."""


TRACE_LIMITS = TraceLimits()
"""The limits of device processes."""


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
        limits: TraceLimits = TRACE_LIMITS,
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
        self._room = limits.max_bytes
        self._renew_ns = limits.renew_ns
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
        if started > self._renew_ns:
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
