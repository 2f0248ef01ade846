"""Inline copies between buffers and memory that a client shares: one command, issued and answered at once.

The operands of each distinct command are parsed once, and looked up by the command's bytes afterwards. Covers the plain
case only: copies by rows, pending failures, pageable memory and copies beyond the stream's budget are left to
`hearthd.device.transfers.registered`, which has the same result.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import plain_batch
from hearthd.device.fast_path.answer import InlineAnswer, is_unobstructed
from hearthd.device.fast_path.completion_signal import signal
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.fast_path.plain_batch import LoneCopy
from hearthd.device.flows.segment import Segment
from hearthd.device.flows.segment_policy import PART, step
from hearthd.device.operation import ReplySink, internal_error
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.completion_forecast import CopyForecast
from hearthd.device.streams.stream_pool import PooledStream
from hearthd.device.transfers.registered import DOWN, UP
from hearthd.device.transfers.segments import Segments

MAX_CACHED = 512
"""Most commands whose operands are cached."""

MAX_COMMAND_BYTES = 128
"""Largest cached command, in bytes; such a command carries no data."""


class SegmentOperands(NamedTuple):
    """Operands of a Write or Read of shared memory: handles, and sizes and offsets in bytes."""

    writes: bool
    stream: int
    buffer: int
    offset: int
    size: int
    segment: int
    start: int
    """Offset of the bytes in the segment."""
    parts: int
    """Number of driver calls for the copy."""
    answer: bytes
    """The encoded fields of the command's Result, except for the request number."""


class InlineCopies:
    """Issues inline copies. Device-handle thread only."""

    def __init__(self, device: DeviceContext, segments: Segments, replies: ReplySink) -> None:
        self._device = device
        self._segments = segments
        self._replies = replies
        self.max_cached = MAX_CACHED
        self.resolved: dict[bytes, SegmentOperands] = {}
        """Operands of the cached commands, by the command's bytes without the request number."""
        self._began = 0.0
        """Time at which the latest copy was submitted, in seconds."""
        self._alone = False
        """True if the stream was idle before the latest copy."""

    def find_operands(self, lone: LoneCopy) -> SegmentOperands | None:
        """Returns the cached operands of the command; None if the command is not cached or has no request number."""
        return self.resolved.get(lone.body) if lone.request else None

    def cache_operands(self, lone: LoneCopy, command: commands_pb2.Command) -> SegmentOperands | None:
        """Caches and returns the operands of a plain copy from or to shared memory; returns None for other commands.

        `command` is the decoded command.
        """
        copy = command.write if lone.kind == "write" else command.read
        if not lone.request or len(lone.body) > MAX_COMMAND_BYTES or not copy.HasField("shared"):
            return None
        operands = _operands_of(commands_pb2.Command.FromString(lone.body))
        if operands is not None:
            if len(self.resolved) >= self.max_cached:
                self.resolved.clear()
            self.resolved[lone.body] = operands
        return operands

    def submit(self, batch: InlineBatch, request: bytes, operands: SegmentOperands) -> InlineCopy | None:
        """Submits the copy; no other command of the session may be waiting.

        Returns None, without effect, for anything but the plain case.
        """
        session = batch.session
        stream = session.streams.items.get(operands.stream)
        buffer = session.buffers.items.get(operands.buffer)
        segment = self._segments.get(session, operands.segment)
        if stream is None or buffer is None or segment is None:
            return None
        track = stream.track
        if (
            stream.capture is not None
            or not is_unobstructed(self._device, stream, buffer, operands.offset, operands.size)
            or operands.start + operands.size > segment.size
            or not segment.pinned
            or (buffer.read_only is not None if operands.writes else stream.errors)
            or track.budget < operands.parts
        ):
            return None
        refusal = self._submit_parts(buffer, segment, track, operands)
        copy = InlineCopy(self._device, self._replies, batch, stream, segment, request, operands, self._began)
        copy.refusal = refusal
        if refusal is None:
            copy.signalled = signal(self._device, batch, stream, request)
            self._device.tracks.on_complete(track, copy.end)
            self._record_metrics(copy, operands)
        return copy

    def _submit_parts(
        self, buffer: Buffer, segment: Segment, track: PooledStream, operands: SegmentOperands
    ) -> Refusal | None:
        """Submits the copy. Returns the error because of which the driver did not accept all of it; None if it did."""
        tracks, server, stream = self._device.tracks, self._device.server, track.stream
        writes, reads = ((buffer.usage,), ()) if operands.writes else ((), (buffer.usage,))
        at, remaining, address = operands.start, operands.size, buffer.address + operands.offset
        self._began, self._alone = time.perf_counter(), tracks.done(track)
        try:
            while remaining:
                length = step(at, remaining)
                tracks.claim_position(track, writes, reads)
                if operands.writes:
                    server.upload(address, segment, at, length, stream)
                else:
                    server.download(segment, at, address, length, stream)
                at += length
                address += length
                remaining -= length
        except DeviceFault:
            raise
        except Exception as error:
            self._count(operands, at - operands.start)
            return error if isinstance(error, Refusal) else internal_error(_kind(operands), error)
        return None

    def _record_metrics(self, copy: InlineCopy, operands: SegmentOperands) -> None:
        """Updates the metrics and the forecast for a submitted copy."""
        telemetry, size = self._device.telemetry, operands.size
        if self._alone:
            direction = UP if operands.writes else DOWN
            copy.forecast = self._device.tracks.forecast.begin(direction, size, self._began)
        self._count(operands, size)
        if operands.writes:
            telemetry.upload_shared_memory_bytes += size
        else:
            telemetry.download_shared_memory_bytes += size

    def _count(self, operands: SegmentOperands, size: int) -> None:
        """Counts `size` bytes of the copy as submitted."""
        telemetry, parts = self._device.telemetry, _parts(operands.start, size)
        if operands.writes:
            telemetry.host_to_device_bytes += size
            telemetry.host_to_device_operations += parts
        else:
            telemetry.device_to_host_bytes += size
            telemetry.device_to_host_operations += parts


class InlineCopy(InlineAnswer):
    """A submitted inline copy."""

    __slots__ = ("_answer", "_began", "_segment", "forecast", "name", "signalled")

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        batch: InlineBatch,
        stream: LogicalStream,
        segment: Segment,
        request: bytes,
        operands: SegmentOperands,
        began: float,
    ) -> None:
        super().__init__(device, replies, batch, stream, request, operands.size)
        self._segment = segment
        self._began = began
        self._answer = plain_batch.answered(request, operands.answer)
        self.name = _kind(operands)
        self.forecast: CopyForecast | None = None
        self.signalled: Segment | None = None
        """The segment in which the device signals the end of the copy; None without a signal."""
        segment.hold()

    def end(self) -> None:
        """Answers the copy, which is done."""
        now = time.perf_counter()
        self.is_done = True
        self._send(self._answer)
        if self.forecast is not None:
            self._device.tracks.forecast.completed(self.forecast, now)
        self._release()

    def _release(self) -> None:
        self._device.telemetry.transfer.observe(int((time.perf_counter() - self._began) * 1e9))
        self._segment.drop()
        if self.signalled is not None:
            self.signalled.drop()


def _parts(start: int, size: int) -> int:
    """Returns the number of driver calls for `size` bytes of a segment from offset `start`."""
    return (start + size - 1) // PART - start // PART + 1 if size else 0


def _kind(operands: SegmentOperands) -> str:
    return "write" if operands.writes else "read"


def _operands_of(command: commands_pb2.Command) -> SegmentOperands | None:
    """Returns the operands of a plain copy from or to shared memory; None for other commands."""
    kind = command.WhichOneof("kind")
    if command.request or kind not in ("write", "read"):
        return None
    writes = kind == "write"
    copy = command.write if writes else command.read
    if not copy.HasField("shared") or copy.HasField("rows") or copy.transfer or not copy.size:
        return None
    if writes and command.write.data:
        return None
    size, start = copy.size, copy.shared.offset
    result = (
        commands_pb2.Result(done=commands_pb2.Done())
        if writes
        else commands_pb2.Result(read=commands_pb2.ReadResult(size=size))
    )
    return SegmentOperands(
        writes,
        command.stream,
        copy.buffer,
        copy.offset,
        size,
        copy.shared.segment,
        start,
        _parts(start, size),
        result.SerializeToString(),
    )
