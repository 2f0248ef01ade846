"""Writes and reads of memory that the client shares: the device copies directly from and to that memory.

Such a command is one operation. It is submitted as a few large copies, each ordered separately in the stream, so that
other sessions can run between two copies. The answer is sent after the last copy has completed: only then may the
client change or read the bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import HostCopyNode
from hearthd.device.context import DeviceContext
from hearthd.device.flows.segment import Segment, SegmentRange
from hearthd.device.flows.segment_policy import check_range, step
from hearthd.device.operation import Operation
from hearthd.device.streams.completion_forecast import CopyForecast
from hearthd.device.streams.pending_outcomes import PendingOutcome, both
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.completion_signal import signal
from hearthd.device.transfers.layout import pieces
from hearthd.device.transfers.segments import Segments

UP, DOWN = 0, 1
"""Direction of a copy. The device has one copy engine for each direction."""


class Progress(Protocol):
    """The progress of a copy."""

    submitted: int
    """Number of bytes whose copies have been submitted to the device."""


class SegmentCopy:
    """The copy of one command from or to a range of a segment."""

    __slots__ = ("began", "buffer_copy", "created_ns", "forecast", "location", "on_done", "outcomes", "over",
                 "signalled", "submitted")  # fmt: skip

    def __init__(self, location: SegmentRange, copy: BufferCopy, on_done: Callable[[int], None]) -> None:
        self.created_ns = time.perf_counter_ns()
        self.on_done = on_done
        """Called with the duration of the copy, in nanoseconds."""
        self.location = location
        self.buffer_copy = copy
        self.submitted = 0
        """Number of bytes whose copies have been submitted to the device."""
        self.began = 0.0
        """Time of the first copy, in seconds, if the stream had no earlier work under way; otherwise 0."""
        self.forecast: CopyForecast | None = None
        self.outcomes: dict[PendingOutcome, None] = {}
        """Outcomes of the collectives that the copied bytes depended on."""
        self.signalled: Segment | None = None
        """The segment in which the device signals the end of the copy; None without a signal."""
        self.over = False
        location.segment.hold()

    def end(self) -> None:
        """Ends the use of the segment. A second call has no effect."""
        if not self.over:
            self.over = True
            self.on_done(time.perf_counter_ns() - self.created_ns)
            self.location.segment.drop()
            if self.signalled is not None:
                self.signalled.drop()


class SegmentCopies:
    """Submits copies from and to segments. Device-handle thread only."""

    def __init__(self, device: DeviceContext, segments: Segments) -> None:
        self._device = device
        self._segments = segments

    def write(self, buffer_copy: BufferCopy, command: commands_pb2.Write) -> Operation:
        """Returns the operation of a write, which is answered when the bytes have been read from the segment."""
        _check_alone("write", bool(command.data), command.transfer)
        origin, buffer = buffer_copy.origin, buffer_copy.buffer
        if origin.capture is not None:
            return self._captured("write", buffer_copy, command.shared)
        try:
            copy = self._new_copy("write", buffer_copy, command.shared)
        except Refusal as refusal:  # raised when the write runs: later commands must not use the old bytes
            return Operation(origin, partial(_refuse, refusal), writes=(origin.stream, buffer), spoils=(buffer,))
        operation = Operation(origin, partial(self._write, copy), writes=(origin.stream, buffer), spoils=(buffer,))
        operation.on_failure = partial(self._abandon, copy)
        return operation

    def read(self, buffer_copy: BufferCopy, command: commands_pb2.Read) -> Operation:
        """Returns the operation of a read, which is answered when the bytes have been written to the segment."""
        _check_alone("read", False, command.transfer)
        origin = buffer_copy.origin
        if origin.capture is not None:
            return self._captured("read", buffer_copy, command.shared)
        copy = self._new_copy("read", buffer_copy, command.shared)
        operation = Operation(origin, partial(self._read, copy), writes=(origin.stream,), reads=(buffer_copy.buffer,))
        operation.on_failure = partial(self._abandon, copy)
        return operation

    def _new_copy(self, command: str, buffer_copy: BufferCopy, shared: commands_pb2.Shared) -> SegmentCopy:
        location = self._locate(command, buffer_copy, shared)
        return SegmentCopy(location, buffer_copy, self._device.telemetry.transfer.observe)

    def _locate(self, command: str, buffer_copy: BufferCopy, shared: commands_pb2.Shared) -> SegmentRange:
        """Returns the range of the segment that a command names. Raises Refusal."""
        segment, size = self._segments.find(buffer_copy.origin.session, shared.segment), buffer_copy.rows.size
        check_range(command, segment.ident, segment.size, shared.offset, size)
        return SegmentRange(segment, shared.offset, size)

    # ---- captures ----

    def _captured(self, command: str, buffer_copy: BufferCopy, shared: commands_pb2.Shared) -> Operation:
        """Returns the operation that records a copy in the stream's capture. The graph holds the segment."""
        origin, buffer = buffer_copy.origin, buffer_copy.buffer
        segment, start, _ = self._locate(command, buffer_copy, shared)
        if not segment.pinned:
            raise Refusal(
                Reason.CAPTURE_INVALID,
                f"{command}: segment {segment.ident} is not page-locked, so a graph cannot copy from or to it",
                fix="raise the limit of locked memory (LimitMEMLOCK) of the daemon, or copy outside the capture",
                details={"segment": segment.ident},
            )
        segment.hold()  # until the node is recorded

        def run() -> bool:
            if command == "write":
                buffer.check_writable(command)
            buffer_copy.locate(command)
            capture = origin.capture
            assert capture is not None
            capture.add_host_copy(buffer, _copy_node(command == "write", buffer_copy, segment, start))
            segment.drop()
            origin.reply()
            return True

        operation = Operation(origin, run, writes=(origin.stream,), reads=(buffer,))
        operation.on_failure = lambda _: segment.drop()
        return operation

    # ---- writes and reads ----

    def _write(self, copy: SegmentCopy) -> bool:
        buffer_copy = copy.buffer_copy
        buffer, size = buffer_copy.buffer, copy.location.size
        buffer.check_writable("write")
        buffer_copy.locate("write")
        self._begin(copy)
        if not submit_range(self._device, copy, copy.location, buffer_copy, upload=True):
            return False
        if size == buffer.size:
            buffer.failure = None
        self._device.telemetry.upload_shared_memory_bytes += size
        self._answer_when_done(copy, UP, partial(self._written, copy))
        return True

    def _written(self, copy: SegmentCopy) -> None:
        now = time.perf_counter()
        copy.buffer_copy.origin.reply()
        self._end(copy, now)

    def _read(self, copy: SegmentCopy) -> bool:
        device, buffer_copy = self._device, copy.buffer_copy
        if not copy.submitted and buffer_copy.refused():
            copy.end()
            return True
        buffer_copy.locate("read")
        self._begin(copy)
        complete = submit_range(device, copy, copy.location, buffer_copy, upload=False)
        for outcome in device.tracks.pending_outcomes.of_buffer(buffer_copy.buffer.usage):
            copy.outcomes[outcome] = None
        if not complete:
            return False
        device.telemetry.download_shared_memory_bytes += copy.location.size
        arrived = partial(self._arrived, copy)
        self._answer_when_done(copy, DOWN, both(copy.outcomes, arrived) if copy.outcomes else arrived)
        return True

    def _arrived(self, copy: SegmentCopy) -> None:
        now = time.perf_counter()
        if not (copy.outcomes and copy.buffer_copy.refused(copy.outcomes)):
            copy.buffer_copy.origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(size=copy.location.size)))
        self._end(copy, now)

    def _begin(self, copy: SegmentCopy) -> None:
        """Notes the time of the first copy if the stream has no earlier work under way."""
        if not copy.submitted and self._device.tracks.done(copy.buffer_copy.origin.stream.track):
            copy.began = time.perf_counter()

    def _answer_when_done(self, copy: SegmentCopy, direction: int, answer: Callable[[], None]) -> None:
        """Calls `answer` when a copy that has been submitted completely is done.

        Starts a forecast if the stream had no earlier work.
        """
        tracks, origin = self._device.tracks, copy.buffer_copy.origin
        track = origin.stream.track
        if copy.location.segment.pinned:
            if copy.began:
                copy.forecast = tracks.forecast.begin(direction, copy.location.size, copy.began)
            if not copy.outcomes:
                copy.signalled = signal(self._device, origin)
            track.copied_at = tracks.ordering.position(track.index)
        tracks.answer_when_done(track, answer)

    def _end(self, copy: SegmentCopy, now: float) -> None:
        """Accounts for a copy that was done at the time `now` and has been answered."""
        if not copy.buffer_copy.origin.stream.track.pending:  # no more completions follow: answer before the accounting
            self._device.outbox.answer()
        if copy.forecast is not None:
            self._device.tracks.forecast.completed(copy.forecast, now)
        copy.end()

    def _abandon(self, copy: SegmentCopy, _refusal: Refusal) -> None:
        """Ends a command that will not continue, after its copies under way."""
        if copy.submitted or not copy.location.segment.pinned:
            self._device.tracks.on_complete(copy.buffer_copy.origin.stream.track, copy.end)
        else:
            copy.end()


def submit_range(
    device: DeviceContext, progress: Progress, location: SegmentRange, copy: BufferCopy, *, upload: bool
) -> bool:
    """Submits as much of the copy from a segment (`upload`), or to it, as the stream has room for.

    Returns True once all of it is submitted.
    """
    segment, start, size = location
    submit, copy_now = (copy.upload, copy.put_now) if upload else (copy.download, copy.get_into)
    while progress.submitted < size:
        at = progress.submitted
        if segment.pinned:
            if copy.origin.stream.track.full:
                return False
            part = step(start + at, size - at)
            submit(segment, start + at, at, part)
        else:
            part = min(size - at, device.spec.chunk_bytes)
            if not copy_now(at, location.view(at, part)):
                return False
        progress.submitted += part
    return True


def _copy_node(upload: bool, copy: BufferCopy, segment: Segment, start: int) -> HostCopyNode:
    """Returns the node of a copy between rows of the buffer and the segment, from byte `start` on."""
    address, rows = copy.address, copy.rows
    made: list[HostCopyNode] = []
    at = 0
    while at < rows.size:
        part = step(start + at, rows.size - at)
        for offset, device, width, count, pitch in pieces(rows, at, part):
            made.append(HostCopyNode(upload, address + device, segment, start + at + offset, width, count, pitch))
        at += part
    if len(made) == 1:
        return made[0]
    width, count = (rows.size, 1) if rows.dense else (rows.width, rows.rows)
    return HostCopyNode(upload, address, segment, start, width, count, rows.pitch, tuple(made))


def _check_alone(command: str, data: bool, transfer: int) -> None:
    if data or transfer:
        second_source = "data" if data else f"transfer {transfer}"
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"a {command} names shared memory, and {second_source} as well",
            fix=f"name one place for the bytes of a {command}",
        )


def _refuse(refusal: Refusal) -> bool:
    raise refusal
