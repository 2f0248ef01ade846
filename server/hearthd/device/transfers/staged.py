"""Copies between staging memory and the device, in the order of a stream.

Used by inline writes and reads and by transfers.
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth_proto.layouts import RowLayout
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.streams.stream_errors import poisoned, surface
from hearthd.device.transfers.layout import Piece, pieces


class StagedCopies:
    """Submits copies through staging memory. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def upload(
        self,
        origin: Origin,
        buffer: Buffer,
        address: int,
        host: HostBuffer,
        size: int,
        into: Iterable[Piece] | None = None,
    ) -> None:
        """Copies a host buffer to the device, in the order of the stream.

        The host buffer is released when the copy is done or was refused.

        `into` lists the pieces of the copy, relative to `address`; by default the bytes are contiguous.
        """
        device = self._device
        track = origin.stream.track
        device.tracks.claim_position(track, (buffer.usage,))
        device.begin(origin.stream, size)
        try:
            if into is None:
                device.server.upload(address, host, 0, size, track.stream)
            else:
                self._upload(address, host, into, track.stream)
        finally:
            device.staging.drop(track, host)  # released behind the part that the driver has accepted
        device.telemetry.host_to_device_bytes += size
        device.telemetry.host_to_device_operations += 1

    def _upload(self, address: int, host: HostBuffer, into: Iterable[Piece], stream: object) -> None:
        server = self._device.server
        for at, offset, width, rows, pitch in into:
            if rows == 1:
                server.upload(address + offset, host, at, width, stream)
            else:
                server.upload_rows(address + offset, pitch, host, at, width, rows, stream)

    def download(
        self,
        origin: Origin,
        buffer: Buffer,
        address: int,
        host: HostBuffer,
        size: int,
        out_of: Iterable[Piece] | None = None,
    ) -> None:
        """Copies from the device to a host buffer.

        The caller keeps the host buffer, unless this method raises an exception: then the host buffer is released.
        """
        device = self._device
        track = origin.stream.track
        device.tracks.claim_position(track, (), (buffer.usage,))
        device.begin(origin.stream, size)
        try:
            if out_of is None:
                device.server.download(host, 0, address, size, track.stream)
            else:
                self._download(address, host, out_of, track.stream)
        except Exception:
            device.staging.drop(track, host)
            raise
        device.telemetry.device_to_host_bytes += size
        device.telemetry.device_to_host_operations += 1

    def _download(self, address: int, host: HostBuffer, out_of: Iterable[Piece], stream: object) -> None:
        server = self._device.server
        for at, offset, width, rows, pitch in out_of:
            if rows == 1:
                server.download(host, at, address + offset, width, stream)
            else:
                server.download_rows(host, at, address + offset, pitch, width, rows, stream)


class DirectCopies:
    """Copies of one command without page-locked memory: directly from its message, or into its message.

    The driver blocks a thread that copies from or to ordinary memory until the earlier work of the stream is done, and
    the device-handle thread must not block. Therefore the command waits until its stream has completed all earlier
    work; the thread then blocks only for the copy itself, one chunk at a time. Later commands on the stream wait behind
    the command; other streams are unaffected.
    """

    __slots__ = ("_buffer", "_device", "_origin", "_reached", "_rows", "address", "waits")

    def __init__(self, device: DeviceContext, origin: Origin, buffer: Buffer, rows: RowLayout) -> None:
        self._device = device
        self._origin = origin
        self._buffer = buffer
        self._rows = rows
        self._reached = False
        self.address = 0
        """Address of the first row; must be set before the first copy."""
        self.waits = False
        """True while a copy waits for its stream. That copy must then be made here, even if staging memory has become
        free."""

    def write(self, at: int, data: memoryview) -> bool:
        """Writes `data` into the rows, starting at byte `at`.

        Returns False if the copy has to wait; the caller tries again.
        """
        size = len(data)
        if not self._reach_position(size, writes=True):
            return False
        for start, offset, width, rows, pitch in pieces(self._rows, at, size):
            view = data[start : start + width * rows]
            self._device.server.write_now(self.address + offset, pitch, view, width, rows)
        self._device.telemetry.host_to_device_bytes += size
        self._device.telemetry.host_to_device_operations += 1
        return True

    def read(self, at: int, size: int) -> bytes | None:
        """Returns `size` bytes of the rows, starting at byte `at`.

        Returns None if the copy has to wait; the caller tries again.
        """
        if not self._reach_position(size, writes=False):
            return None
        data = bytearray(size)
        with memoryview(data) as into:
            for start, offset, width, rows, pitch in pieces(self._rows, at, size):
                with into[start : start + width * rows] as view:
                    self._device.server.read_now(view, self.address + offset, pitch, width, rows)
        self._device.telemetry.device_to_host_bytes += size
        self._device.telemetry.device_to_host_operations += 1
        return bytes(data)

    def _reach_position(self, size: int, *, writes: bool) -> bool:
        """Returns True once the stream has completed all work before this copy.

        The first call registers a callback for that.
        """
        if self._reached:
            self.waits = self._reached = False
            return True
        track = self._origin.stream.track
        if not self.waits and not track.full:
            self.waits = True
            usage = (self._buffer.usage,)
            self._device.tracks.claim_position(track, usage if writes else (), () if writes else usage)
            self._device.begin(self._origin.stream, size)
            pending_outcomes = self._device.tracks.pending_outcomes
            arrive = self._arrive if writes else pending_outcomes.when_settled(self._buffer.usage, self._arrive)
            self._device.tracks.on_complete(track, arrive)
        return False

    def _arrive(self) -> None:
        self._reached = True
        self._device.kick(self._origin.session)


def locate(buffer: Buffer, rows: RowLayout, subject: str) -> int:
    """Returns the address of the first row. Raises Refusal for rows outside the buffer."""
    if not rows.dense:
        subject = f"{subject} of {rows.rows} rows of {rows.width} bytes, {rows.pitch} apart"
    return buffer.range(rows.offset, rows.extent, subject)


def refused_read(origin: Origin, buffer: Buffer, outcomes: Iterable[PendingOutcome] = ()) -> bool:
    """Answers a read with the unreported failures before it on its stream, or with the failure of the buffer.

    Returns True if there was a failure.

    `outcomes` belong to the collectives that the buffer's contents depended on when they were copied.
    """
    failures = origin.stream.errors.pop_all(origin.position)
    if not failures:
        failure = poisoned(buffer.failure) or next((outcome.failure for outcome in outcomes if outcome.failure), None)
        failures = [failure.cause] if failure is not None else []
    if failures:
        origin.reply_error(surface(failures))
    return bool(failures)
