"""Memory shared with a device process of this host, set up at the first large copy of each attachment.

If sharing is impossible or fails, no error is reported: bytes travel over gRPC then, as they do to remote devices.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING

from hearth.errors import HearthError
from hearth.transfer.ring_buffer import SLOT_BYTES, Ring, Slot
from hearth.transport import memory_segments
from hearth.transport.memory_segments import Segment, SegmentPosition, Signals, address_of, known_segments
from hearth.transport.segment_pool import pool
from hearth.transport.segments import ConnectionLost, open_segments
from hearth_proto.frames import Kind
from hearth_proto.v1 import device_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transport.segments import SegmentConnection

_TRIES = 3
"""Number of consecutive fruitless connections of one attachment after which no more are opened."""


class Shared:
    """Memory shared for one attachment, as long as its connection is open."""

    def __init__(self, attachment: Attachment, connection: SegmentConnection, transfers: bool = False) -> None:
        self.attachment = attachment
        self.transfers = transfers
        """True if transfers may be placed in segments: see `place`."""
        self.ring = Ring(self._slot)
        self.connection = connection
        """Connection over which the segments are registered."""
        self._signals_enabled = False

    @property
    def alive(self) -> bool:
        """True if segments can still be registered and used; polls the connection."""
        return self.connection.alive

    def lost(self, error: HearthError) -> bool:
        """True if a command failed because its segment and the connection no longer existed when it arrived.

        Then the device process does not use the memory any more.

        Args:
            error: Error of the command.
        """
        return error.reason == "INVALID_HANDLE" and not error.failures and not self.alive

    def number(self, segment: Segment, *, signals: bool = False) -> int:
        """Returns the number by which commands name the segment, which is registered first if needed.

        Args:
            segment: Segment of this process.
            signals: True if the segment holds completion signals (`memory_segments.Signals`).

        Returns:
            The number, or 0 if the segment cannot be registered.
        """
        number = self.connection.number(segment)
        if number or segment.size > self.connection.max_bytes:
            return number
        try:
            number = self.connection.register(segment, signals=signals)
            if number or not pool.cached:
                return number
            pool.trim()  # memory without an array need not stay registered
            return self.connection.register(segment, signals=signals)
        except ConnectionLost:
            return 0

    def enable_signals(self) -> None:
        """Lets the device signal completions directly to waiting threads from now on.

        Does nothing if no thread polls; if signals are impossible, completions come from the daemon alone.
        """
        if not self._signals_enabled and self.attachment.spin_wait.max_spin_s:
            self._signals_enabled = True
            self.attachment.signals = self._signals()

    def _signals(self) -> Signals | None:
        """Returns the completion signals that the device writes; None if they are impossible."""
        try:
            segment = Segment(mmap.PAGESIZE)
            return Signals(segment) if self.number(segment, signals=True) else None
        except (OSError, HearthError):
            return None

    def position(self, data: memoryview) -> SegmentPosition | None:
        """Returns the position of bytes in a registered segment, which is registered first if needed.

        Args:
            data: The bytes.

        Returns:
            The position, or None if the bytes are not in a segment, or it cannot be registered.
        """
        position = known_segments.find(address_of(data), len(data))
        return position if position is not None and self.number(position.segment) else None

    def place(self, kind: Kind, transfer: int, position: SegmentPosition, size: int) -> bool | None:
        """Asks the device process to copy the bytes of a transfer from `position` or to it.

        Waits for its answer, but not for the device.

        Args:
            kind: ``Kind.UPLOAD`` (from `position`) or ``Kind.DOWNLOAD`` (to it).
            transfer: Number of the transfer.
            position: Location in a registered segment.
            size: Number of bytes.

        Returns:
            True if the device process copies, False if not. None if no answer arrived: it may or may not copy.
        """
        segment = position.segment
        try:
            return self.connection.place(kind, transfer, segment, position.offset, size)
        except BaseException as error:  # the device process may use the memory without being tracked
            segment.spoiled = True
            if isinstance(error, ConnectionLost):
                return None
            raise

    def close(self) -> None:
        """Stops sharing; the device process completes the copies in flight."""
        self.connection.release()
        self.ring.end()

    def forked(self) -> None:
        """Abandons the connection in the child process of a fork: it belongs to the parent."""
        self.connection.forked()
        self.ring = Ring(lambda: None, 0)

    def _slot(self) -> Slot | None:
        try:
            segment = Segment(SLOT_BYTES)
        except OSError:
            return None
        number = self.number(segment)
        return Slot(segment, number) if number else None


class SharedMemory:
    """Shared memory of one `Connection`. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.shared: Shared | None = None
        """Memory shared for the attachment that was opened last; None: there is none."""
        self._last_attachment: weakref.ref[Attachment] | None = None
        """The attachment for which sharing was last set up or attempted."""
        self._failed = 0
        """Number of failures for that attachment."""
        self._closed = False
        self._pid = os.getpid()

    def for_attachment(self, attachment: Attachment) -> Shared | None:
        """Returns the memory shared for the attachment; None if there is none. Blocks while sharing is set up.

        Args:
            attachment: Attachment of the connection.
        """
        shared = self.shared
        if shared is not None and shared.attachment is attachment and shared.alive:
            return shared
        if self.unavailable(attachment):
            return None
        with self._lock:
            shared = self.shared
            if shared is not None and shared.attachment is attachment and shared.alive:
                return shared
            self.shared = None
            if shared is not None:
                shared.close()
                if shared.attachment is attachment:
                    self._failed = 0 if shared.connection.ever_accepted else self._failed + 1
            if self.unavailable(attachment):
                return None
            if self._last_attachment is None or self._last_attachment() is not attachment:
                self._last_attachment, self._failed = weakref.ref(attachment), 0
            try:
                self.shared = self._open(attachment)
            except HearthError as error:
                self._failed += _TRIES if error.reason == "UNSUPPORTED" else 1
            except OSError:
                self._failed += 1
            return self.shared

    def unavailable(self, attachment: Attachment) -> bool:
        """True if no memory will be shared for that attachment. Does not block.

        Args:
            attachment: Attachment of the connection.
        """
        if self._closed or not self._connection.transport.lanes or not memory_segments.possible():
            return True
        return self._failed >= _TRIES and self._last_attachment is not None and self._last_attachment() is attachment

    def _open(self, attachment: Attachment) -> Shared:
        request = device_pb2.OpenBulkRequest(
            session_token=self._connection.token,
            device=self._connection.ordinal,
            generation=attachment.session.generation,
        )
        answer = self._connection.transport.open_bulk(request)
        if not answer.tickets or not answer.path:
            raise OSError("the daemon returned no ticket")
        max_bytes = answer.max_segment_bytes
        opened = open_segments(answer.path, answer.tickets[0], max_bytes, self._connection.mint)
        return Shared(attachment, opened, answer.transfers)

    def close(self) -> None:
        """Ends all sharing for good."""
        self._closed = True
        if self._pid == os.getpid():
            with self._lock:
                shared, self.shared = self.shared, None
            if shared is not None:
                shared.close()

    def forked(self) -> None:
        """Ends all sharing in the child process of a fork. Takes no lock."""
        self._closed = True
        shared, self.shared = self.shared, None
        if shared is not None:
            shared.forked()
