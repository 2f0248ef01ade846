"""Inline reads: small reads that are copied at once and returned in the answer.

Covers the plain case only: every other read is left to `hearthd.device.transfers.copy_commands`, which has the same
result.
"""

from __future__ import annotations

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.fast_path import plain_batch
from hearthd.device.fast_path.answer import InlineAnswer, is_unobstructed
from hearthd.device.fast_path.inline_batch import InlineBatch
from hearthd.device.operation import ReplySink, internal_error
from hearthd.device.session.stream import LogicalStream

LARGEST = 64 << 10
"""Largest inline read, in bytes. For larger reads the time of the copy exceeds the time that is saved."""


class InlineReads:
    """Issues inline reads. Device-handle thread only."""

    def __init__(self, device: DeviceContext, replies: ReplySink) -> None:
        self._device = device
        self._replies = replies
        self._max_bytes = min(LARGEST, device.spec.max_inline_bytes)

    def submit(
        self, batch: InlineBatch, stream: LogicalStream, request: bytes, read: commands_pb2.Read
    ) -> InlineRead | None:
        """Submits a Read that `mixed_batch` has decoded as the last command of its batch.

        No other command of the session may be waiting. Returns None, without effect, for anything but the plain case.
        """
        device, track = self._device, stream.track
        size, offset = read.size, read.offset
        session = batch.session
        buffer = session.buffers.items.get(read.buffer)
        if (
            buffer is None
            or not 0 < size <= self._max_bytes
            or not is_unobstructed(device, stream, buffer, offset, size)
            or stream.errors
            or track.full
        ):
            return None
        host = device.staging.find(size, session)
        if host is None:
            return None
        reading = InlineRead(device, self._replies, batch, stream, request, host, size)
        device.tracks.claim_position(track, (), (buffer.usage,))
        try:
            device.server.download(host, 0, buffer.address + offset, size, track.stream)
        except DeviceFault:
            raise
        except Exception as error:
            reading.refusal = error if isinstance(error, Refusal) else internal_error(reading.name, error)
            return reading
        device.tracks.on_complete(track, reading.end)
        telemetry = device.telemetry
        telemetry.device_to_host_bytes += size
        telemetry.device_to_host_operations += 1
        telemetry.download_inline_bytes += size
        return reading


class InlineRead(InlineAnswer):
    """A submitted inline read."""

    __slots__ = ("_host",)

    name = "read"

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        batch: InlineBatch,
        stream: LogicalStream,
        request: bytes,
        host: HostBuffer,
        size: int,
    ) -> None:
        super().__init__(device, replies, batch, stream, request, size)
        self._host = host

    def end(self) -> None:
        """Answers the read, which is done."""
        self.is_done = True
        self._send(plain_batch.read_answer(self._request, self._host.view[: self.size]))
        self._release()

    def _release(self) -> None:
        self._device.staging.release(self._host)
