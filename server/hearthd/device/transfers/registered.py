"""Writes and reads of memory that the client shares: the device copies directly from and to that memory.

Such a command is one operation. It is submitted as a few large copies, each ordered separately in the stream, so that
other sessions can run between two copies. The answer is sent after the last copy has completed: only then may the
client change or read the bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import HostCopyNode
from hearthd.device.context import DeviceContext
from hearthd.device.flows.segment import Segment
from hearthd.device.flows.segment_policy import check_range, step
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.streams.completion_forecast import CopyForecast
from hearthd.device.streams.pending_outcomes import PendingOutcome, both
from hearthd.device.transfers.completion_signal import signal
from hearthd.device.transfers.layout import pieces
from hearthd.device.transfers.segments import Segments
from hearthd.device.transfers.staged import DirectCopies, locate, refused_read

Copy = Callable[["SegmentCopy", int, int, int], None]
"""Submits one copy of a command. Arguments: the command's copy, the device address, the first byte, and the size in
bytes."""


UP, DOWN = 0, 1
"""Direction of a copy. The device has one copy engine for each direction."""


class SegmentCopy:
    """The copy of one command, from offset `start` of the segment on, and the number of bytes submitted so far."""

    __slots__ = (
        "began",
        "buffer",
        "created_ns",
        "direct",
        "forecast",
        "on_done",
        "origin",
        "outcomes",
        "over",
        "rows",
        "segment",
        "signalled",
        "start",
        "submitted",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin,
        segment: Segment,
        start: int,
        buffer: Buffer,
        rows: RowLayout,
        direct: DirectCopies,
        on_done: Callable[[int], None],
    ) -> None:
        self.origin = origin
        self.created_ns = time.perf_counter_ns()
        self.on_done = on_done
        """Called with the duration of the copy, in nanoseconds."""
        self.segment = segment
        self.start = start
        self.buffer = buffer
        self.rows = rows
        self.direct = direct
        """Copies that are used if the segment could not be page-locked."""
        self.submitted = 0
        self.began = 0.0
        """Time of the first copy, in seconds, if the stream had no earlier work under way; otherwise 0."""
        self.forecast: CopyForecast | None = None
        self.outcomes: dict[PendingOutcome, None] = {}
        """Outcomes of the collectives that the copied bytes depended on."""
        self.signalled: Segment | None = None
        """The segment in which the device signals the end of the copy; None without a signal."""
        self.over = False
        segment.hold()

    def end(self) -> None:
        """Ends the use of the segment. A second call has no effect."""
        if not self.over:
            self.over = True
            self.on_done(time.perf_counter_ns() - self.created_ns)
            self.segment.drop()
            if self.signalled is not None:
                self.signalled.drop()


class SegmentCopies:
    """Submits copies from and to segments. Device-handle thread only."""

    def __init__(self, device: DeviceContext, segments: Segments) -> None:
        self._device = device
        self._segments = segments

    def write(self, origin: Origin, command: commands_pb2.Write, buffer: Buffer, rows: RowLayout) -> Operation:
        """Returns the operation of a write, which is answered when the bytes have been read from the segment."""
        _check_alone("write", bool(command.data), command.transfer)
        if origin.capture is not None:
            return self._captured("write", origin, command.shared, buffer, rows)
        try:
            copy = self._new_copy("write", origin, command.shared, buffer, rows)
        except Refusal as refusal:  # raised when the write runs: later commands must not use the old bytes
            return Operation(origin, partial(_refuse, refusal), writes=(origin.stream, buffer), spoils=(buffer,))
        operation = Operation(origin, partial(self._write, copy), writes=(origin.stream, buffer), spoils=(buffer,))
        operation.on_failure = partial(self._abandon, copy)
        return operation

    def read(self, origin: Origin, command: commands_pb2.Read, buffer: Buffer, rows: RowLayout) -> Operation:
        """Returns the operation of a read, which is answered when the bytes have been written to the segment."""
        _check_alone("read", False, command.transfer)
        if origin.capture is not None:
            return self._captured("read", origin, command.shared, buffer, rows)
        copy = self._new_copy("read", origin, command.shared, buffer, rows)
        operation = Operation(origin, partial(self._read, copy), writes=(origin.stream,), reads=(buffer,))
        operation.on_failure = partial(self._abandon, copy)
        return operation

    def _new_copy(
        self, command: str, origin: Origin, shared: commands_pb2.Shared, buffer: Buffer, rows: RowLayout
    ) -> SegmentCopy:
        segment = self._segments.find(origin.session, shared.segment)
        check_range(command, segment.ident, segment.size, shared.offset, rows.size)
        direct = DirectCopies(self._device, origin, buffer, rows)
        return SegmentCopy(
            origin, segment, shared.offset, buffer, rows, direct, self._device.telemetry.transfer.observe
        )

    # ---- captures ----

    def _captured(
        self, command: str, origin: Origin, shared: commands_pb2.Shared, buffer: Buffer, rows: RowLayout
    ) -> Operation:
        """Returns the operation that records a copy in the stream's capture. The graph holds the segment."""
        segment = self._segments.find(origin.session, shared.segment)
        check_range(command, segment.ident, segment.size, shared.offset, rows.size)
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
            address = locate(buffer, rows, command)
            width, count = (rows.size, 1) if rows.dense else (rows.width, rows.rows)
            node = HostCopyNode(command == "write", address, segment, shared.offset, width, count, rows.pitch)
            capture = origin.capture
            assert capture is not None
            capture.add_host_copy(buffer, node)
            segment.drop()
            origin.reply()
            return True

        operation = Operation(origin, run, writes=(origin.stream,), reads=(buffer,))
        operation.on_failure = lambda _: segment.drop()
        return operation

    # ---- writes and reads ----

    def _write(self, copy: SegmentCopy) -> bool:
        buffer = copy.buffer
        buffer.check_writable("write")
        address = locate(buffer, copy.rows, "write")
        if not self._submit(copy, address, self._upload, self._put):
            return False
        if copy.rows.size == buffer.size:
            buffer.failure = None
        self._device.telemetry.upload_shared_memory_bytes += copy.rows.size
        self._answer_when_done(copy, UP, partial(self._written, copy))
        return True

    def _written(self, copy: SegmentCopy) -> None:
        now = time.perf_counter()
        copy.origin.reply()
        self._end(copy, now)

    def _read(self, copy: SegmentCopy) -> bool:
        if not copy.submitted and refused_read(copy.origin, copy.buffer):
            copy.end()
            return True
        address = locate(copy.buffer, copy.rows, "read")
        if not self._submit(copy, address, self._download, self._get):
            return False
        self._device.telemetry.download_shared_memory_bytes += copy.rows.size
        arrived = partial(self._arrived, copy)
        self._answer_when_done(copy, DOWN, both(copy.outcomes, arrived) if copy.outcomes else arrived)
        return True

    def _arrived(self, copy: SegmentCopy) -> None:
        now, origin = time.perf_counter(), copy.origin
        if not (copy.outcomes and refused_read(origin, copy.buffer, copy.outcomes)):
            origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(size=copy.rows.size)))
        self._end(copy, now)

    def _answer_when_done(self, copy: SegmentCopy, direction: int, answer: Callable[[], None]) -> None:
        """Calls `answer` when a copy that has been submitted completely is done.

        Starts a forecast if the stream had no earlier work.
        """
        tracks, track = self._device.tracks, copy.origin.stream.track
        if copy.segment.pinned:
            if copy.began:
                copy.forecast = tracks.forecast.begin(direction, copy.rows.size, copy.began)
            if not copy.outcomes:
                copy.signalled = signal(self._device, copy.origin)
            track.copied_at = tracks.ordering.position(track.index)
        tracks.answer_when_done(track, answer)

    def _end(self, copy: SegmentCopy, now: float) -> None:
        """Accounts for a copy that was done at the time `now` and has been answered."""
        if not copy.origin.stream.track.pending:  # no more completions follow: send the answer before the accounting
            self._device.outbox.answer()
        if copy.forecast is not None:
            self._device.tracks.forecast.completed(copy.forecast, now)
        copy.end()

    # ---- copies ----

    def _submit(
        self, copy: SegmentCopy, address: int, submit: Copy, copy_directly: Callable[[SegmentCopy, int], bool]
    ) -> bool:
        """Submits as much of the copy as the stream has room for. Returns True once all of it is submitted."""
        size, track = copy.rows.size, copy.origin.stream.track
        copy.direct.address = address
        if not copy.submitted and self._device.tracks.done(track):
            copy.began = time.perf_counter()
        while copy.submitted < size:
            remaining = size - copy.submitted
            if copy.segment.pinned:
                if track.full:
                    return False
                chunk_size = step(copy.start + copy.submitted, remaining)
                submit(copy, address, copy.submitted, chunk_size)
            else:
                chunk_size = min(remaining, self._device.spec.chunk_bytes)
                if not copy_directly(copy, chunk_size):
                    return False
            copy.submitted += chunk_size
        return True

    def _upload(self, copy: SegmentCopy, address: int, at: int, size: int) -> None:
        device, segment, stream = self._device, copy.segment, copy.origin.stream
        server, track = device.server, stream.track
        device.tracks.claim_position(track, (copy.buffer.usage,))
        device.begin(stream, size)
        source_start = copy.start + at
        for start, offset, width, rows, pitch in pieces(copy.rows, at, size):
            if rows == 1:
                server.upload(address + offset, segment, source_start + start, width, track.stream)
            else:
                server.upload_rows(address + offset, pitch, segment, source_start + start, width, rows, track.stream)
        device.telemetry.host_to_device_bytes += size
        device.telemetry.host_to_device_operations += 1

    def _download(self, copy: SegmentCopy, address: int, at: int, size: int) -> None:
        device, segment, stream = self._device, copy.segment, copy.origin.stream
        server, track = device.server, stream.track
        device.tracks.claim_position(track, (), (copy.buffer.usage,))
        device.begin(stream, size)
        target_start = copy.start + at
        for start, offset, width, rows, pitch in pieces(copy.rows, at, size):
            if rows == 1:
                server.download(segment, target_start + start, address + offset, width, track.stream)
            else:
                server.download_rows(segment, target_start + start, address + offset, pitch, width, rows, track.stream)
        for outcome in device.tracks.pending_outcomes.of_buffer(copy.buffer.usage):
            copy.outcomes[outcome] = None
        device.telemetry.device_to_host_bytes += size
        device.telemetry.device_to_host_operations += 1

    def _put(self, copy: SegmentCopy, size: int) -> bool:
        """Copies a chunk from memory that is not page-locked. Returns False if it has to wait."""
        start = copy.start + copy.submitted
        return copy.direct.write(copy.submitted, copy.segment.view[start : start + size])

    def _get(self, copy: SegmentCopy, size: int) -> bool:
        data = copy.direct.read(copy.submitted, size)
        if data is None:
            return False
        start = copy.start + copy.submitted
        copy.segment.view[start : start + size] = data
        return True

    def _abandon(self, copy: SegmentCopy, _refusal: Refusal) -> None:
        """Ends a command that will not continue, behind its copies under way."""
        if copy.submitted or not copy.segment.pinned:
            self._device.tracks.on_complete(copy.origin.stream.track, copy.end)
        else:
            copy.end()


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
