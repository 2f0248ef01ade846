"""Buffer copy: the copy between host memory and rows of a buffer that one command makes, in the order of its stream.

Used by inline writes and reads, by transfers, by dispatches, and by copies from and to shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hearth_proto.layouts import RowLayout
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.streams.stream_errors import poisoned, surface
from hearthd.device.transfers.layout import pieces


class BufferCopy:
    """The copy of one command, made in any number of parts. Device-handle thread only.

    `upload` and `download` submit the copy of a part from or to page-locked memory. `find` lends staging memory, which
    is page-locked.

    `put_now` and `get_now` need no page-locked memory: they copy directly from the command's message, or into its
    answer. The driver blocks a thread that copies from or to ordinary memory until the earlier work of the stream is
    done, and the device-handle thread must not block. Therefore the command waits until its stream has completed all
    earlier work; the thread then blocks only for the copy itself, one part at a time. Later commands on the stream wait
    for the command; other streams are unaffected.
    """

    __slots__ = ("_device", "_reached", "address", "before", "buffer", "origin", "rows", "waits")

    def __init__(self, device: DeviceContext, origin: Origin, buffer: Buffer, rows: RowLayout) -> None:
        self._device = device
        self.origin = origin
        self.buffer = buffer
        self.rows = rows
        """Rows of the buffer that are copied. Offsets of parts count the bytes of the rows, which are dense on the
        host."""
        self.address = 0
        """Address of the first row; must be set before the first copy."""
        self.before: Callable[[], None] | None = None
        """Called before the copy of a part from or to page-locked memory is submitted; None: no call."""
        self.waits = False
        """True while a part that is copied without page-locked memory waits for its stream. That part must then be
        copied in this way, even if staging memory has become free."""
        self._reached = False

    def locate(self, subject: str) -> None:
        """Determines the address, for a command of the kind `subject`. Raises Refusal for rows outside the buffer."""
        self.address = locate(self.buffer, self.rows, subject)

    def refused(self, outcomes: Iterable[PendingOutcome] = ()) -> bool:
        """Answers a read with the unreported failures before it on its stream, or with the failure of the buffer.

        Returns True if there was a failure.

        `outcomes` belong to the collectives that the buffer's contents depended on when they were copied.
        """
        origin = self.origin
        failures = origin.stream.errors.pop_all(origin.position)
        if not failures:
            failure = poisoned(self.buffer.failure)
            failure = failure or next((outcome.failure for outcome in outcomes if outcome.failure), None)
            failures = [failure.cause] if failure is not None else []
        if failures:
            origin.reply_error(surface(failures))
        return bool(failures)

    # ---- page-locked memory ----

    def upload(self, host: HostBuffer, start: int, at: int, size: int) -> None:
        """Submits the copy of `size` bytes, from byte `start` of the host memory, to byte `at` of the rows."""
        device, stream, rows = self._device, self.origin.stream, self.rows
        server, track = device.server, stream.track
        if self.before is not None:
            self.before()
        device.tracks.claim_position(track, (self.buffer.usage,))
        device.begin(stream, size)
        if rows.dense:
            server.upload(self.address + at, host, start, size, track.stream)
        else:
            for offset, target, width, count, pitch in pieces(rows, at, size):
                if count == 1:
                    server.upload(self.address + target, host, start + offset, width, track.stream)
                else:
                    server.upload_rows(self.address + target, pitch, host, start + offset, width, count, track.stream)
        device.telemetry.host_to_device_bytes += size
        device.telemetry.host_to_device_operations += 1

    def download(self, host: HostBuffer, start: int, at: int, size: int) -> None:
        """Submits the copy of `size` bytes, from byte `at` of the rows, to byte `start` of the host memory."""
        device, stream, rows = self._device, self.origin.stream, self.rows
        server, track = device.server, stream.track
        if self.before is not None:
            self.before()
        device.tracks.claim_position(track, (), (self.buffer.usage,))
        device.begin(stream, size)
        if rows.dense:
            server.download(host, start, self.address + at, size, track.stream)
        else:
            for offset, source, width, count, pitch in pieces(rows, at, size):
                if count == 1:
                    server.download(host, start + offset, self.address + source, width, track.stream)
                else:
                    server.download_rows(host, start + offset, self.address + source, pitch, width, count, track.stream)
        device.telemetry.device_to_host_bytes += size
        device.telemetry.device_to_host_operations += 1

    # ---- staging memory ----

    def find(self, size: int) -> HostBuffer | None:
        """Returns staging memory for a part.

        Returns None if the part must wait, or must be copied without staging memory; see `without`.
        """
        return None if self.waits else self._device.staging.find(size, self.origin.session)

    def without(self, size: int) -> bool:
        """Returns True if a part for which `find` returned None must be copied by `put_now` or `get_now`."""
        return self.waits or self._device.staging.refusal(size) is not None

    def put(self, at: int, data: bytes | memoryview) -> bool:
        """Copies `data` to byte `at` of the rows, through staging memory if the host has some.

        Returns False, without effect, if the part must wait; the caller tries again.
        """
        size = len(data)
        host = self.find(size)
        if host is None:
            return self.without(size) and self.put_now(at, memoryview(data))
        host.view[:size] = data
        self.upload_staged(host, at, size)
        return True

    def upload_staged(self, host: HostBuffer, at: int, size: int) -> None:
        """Submits the copy of `size` bytes of staging memory to byte `at` of the rows.

        The memory is released when the copy is done or was refused.
        """
        try:
            self.upload(host, 0, at, size)
        finally:
            self._device.staging.drop(self.origin.stream.track, host)  # after the part that the driver has accepted

    def download_staged(self, host: HostBuffer, at: int, size: int) -> None:
        """Submits the copy of `size` bytes, from byte `at` of the rows, to staging memory.

        The caller keeps the memory, unless this method raises an exception: then the memory is released.
        """
        try:
            self.download(host, 0, at, size)
        except Exception:
            self._device.staging.drop(self.origin.stream.track, host)
            raise

    # ---- memory that is not page-locked ----

    def put_now(self, at: int, data: memoryview) -> bool:
        """Writes `data` to byte `at` of the rows. Returns False if the part must wait; the caller tries again."""
        size = len(data)
        if not self._reach_position(size, writes=True):
            return False
        for start, offset, width, rows, pitch in pieces(self.rows, at, size):
            view = data[start : start + width * rows]
            self._device.server.write_now(self.address + offset, pitch, view, width, rows)
        self._device.telemetry.host_to_device_bytes += size
        self._device.telemetry.host_to_device_operations += 1
        return True

    def get_now(self, at: int, size: int) -> bytes | None:
        """Returns `size` bytes, from byte `at` of the rows on.

        Returns None if the part must wait; the caller tries again.
        """
        data = bytearray(size)
        with memoryview(data) as into:
            return bytes(data) if self.get_into(at, into) else None

    def get_into(self, at: int, into: memoryview) -> bool:
        """Fills `into` from byte `at` of the rows on. Returns False if the part must wait; the caller tries again."""
        size = len(into)
        if not self._reach_position(size, writes=False):
            return False
        for start, offset, width, rows, pitch in pieces(self.rows, at, size):
            with into[start : start + width * rows] as view:
                self._device.server.read_now(view, self.address + offset, pitch, width, rows)
        self._device.telemetry.device_to_host_bytes += size
        self._device.telemetry.device_to_host_operations += 1
        return True

    def _reach_position(self, size: int, *, writes: bool) -> bool:
        """Returns True once the stream has completed all work before this part.

        The first call registers a callback for that.
        """
        if self._reached:
            self.waits = self._reached = False
            return True
        track = self.origin.stream.track
        if not self.waits and not track.full:
            self.waits = True
            usage = (self.buffer.usage,)
            self._device.tracks.claim_position(track, usage if writes else (), () if writes else usage)
            self._device.begin(self.origin.stream, size)
            pending_outcomes = self._device.tracks.pending_outcomes
            arrive = self._arrive if writes else pending_outcomes.when_settled(self.buffer.usage, self._arrive)
            self._device.tracks.on_complete(track, arrive)
        return False

    def _arrive(self) -> None:
        self._reached = True
        self._device.kick(self.origin.session)


def locate(buffer: Buffer, rows: RowLayout, subject: str) -> int:
    """Returns the address of the first row. Raises Refusal for rows outside the buffer."""
    if not rows.dense:
        subject = f"{subject} of {rows.rows} rows of {rows.width} bytes, {rows.pitch} apart"
    return buffer.range(rows.offset, rows.extent, subject)
