"""Memory shared with a device process of this host: opened at the first large copy, for one attachment after another.

Where that cannot be, or fails, nobody is told: bytes go over gRPC then, as they do to remote devices.
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
from hearth.transport.copy_signals import Signals
from hearth.transport.memory_segments import Place, Segment
from hearth.transport.segment_pool import pool
from hearth.transport.segments import Lost, open_segments
from hearth_proto.frames import Kind
from hearth_proto.v1 import device_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transport.segments import SegmentConnection

_TRIES = 3
"""So many connections in a row that nothing came of, on one attachment; then there is no other."""


class Shared:
    """What is shared for one attachment, while its connection lives."""

    def __init__(self, attachment: Attachment, connection: SegmentConnection, transfers: bool = False) -> None:
        self.attachment = attachment
        self.transfers = transfers
        """Whether transfers may be placed in segments: see `place`."""
        self.ring = Ring(self._slot)
        self.connection = connection
        """The connection on which the segments are registered."""
        self._tells = False

    @property
    def alive(self) -> bool:
        """Whether more can be sent; looks."""
        return self.connection.alive

    @property
    def alive_lately(self) -> bool:
        """The same; does not look each time."""
        return self.connection.alive_lately

    @property
    def open(self) -> bool:
        """Whether it was when somebody looked last."""
        return not self.connection.closed

    @property
    def fruitful(self) -> bool:
        """Whether anything was ever shared on it."""
        return self.connection.fruitful

    def lost(self, error: HearthError) -> bool:
        """Whether a command failed with `error` because its segment had gone when it came, with the connection; the
        memory is not the device process's any more then."""
        return error.reason == "INVALID_HANDLE" and not error.failures and not self.alive

    def number(self, segment: Segment, *, signals: bool = False) -> int:
        """What commands name the segment by, after seeing to that; 0 where it has to do without. `signals`: it is for
        these (`hearth.transport.copy_signals`)."""
        number = self.connection.number(segment)
        if number or segment.size > self.connection.most:
            return number
        try:
            number = self.connection.register(segment, signals=signals)
            if number or not pool.cached:
                return number
            pool.trim()  # what no array has any more need not be registered for ever
            return self.connection.register(segment, signals=signals)
        except Lost:
            return 0

    def tell(self) -> None:
        """Has the device tell threads that wait for copies itself when they are done, from now on; where nobody looks
        for that, or it cannot be, they hear it from the daemon alone."""
        if not self._tells and self.attachment.lookout.most:
            self._tells = True
            self.attachment.signals = self._signals()

    def _signals(self) -> Signals | None:
        """Has the device write them; None where it cannot be."""
        try:
            segment = Segment(mmap.PAGESIZE)
            return Signals(segment) if self.number(segment, signals=True) else None
        except (OSError, HearthError):
            return None

    def place(self, kind: Kind, transfer: int, place: Place, size: int) -> bool:
        """Has the device process copy the bytes of a transfer from there (`Kind.UPLOAD`), or to there
        (`Kind.DOWNLOAD`): whether it will. Waits for its word, but not for the device. Raises `Lost` where that did not
        come: then it may or may not."""
        segment = place.segment
        if not self.transfers or not self.number(segment):
            return False
        try:
            return self.connection.place(kind, transfer, segment, place.offset, size)
        except BaseException:  # it may have heard, and use the memory when nobody knows any more
            segment.spoiled = True
            raise

    def close(self) -> None:
        """Nothing more is shared; the device process ends what is under way."""
        self.connection.release()
        self.ring.end()

    def forked(self) -> None:
        """In the child of a fork: the connection is the parent's."""
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
    """Of one `Connection`. Safe from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.shared: Shared | None = None
        """Memory that is shared for the attachment opened for last; None: there is none."""
        self._for: weakref.ref[Attachment] | None = None
        """The attachment that was opened for last, or was tried to be."""
        self._failed = 0
        """How often, for that one."""
        self._closed = False
        self._pid = os.getpid()

    def for_attachment(self, attachment: Attachment) -> Shared | None:
        """What is shared now; None where nothing is. Waits while it is opened."""
        shared = self.shared
        if shared is not None and shared.attachment is attachment and shared.alive:
            return shared
        if self.hopeless(attachment):
            return None
        with self._lock:
            shared = self.shared
            if shared is not None and shared.attachment is attachment and shared.alive:
                return shared
            self.shared = None
            if shared is not None:
                shared.close()
                if shared.attachment is attachment:
                    self._failed = 0 if shared.fruitful else self._failed + 1
            if self.hopeless(attachment):
                return None
            if self._for is None or self._for() is not attachment:
                self._for, self._failed = weakref.ref(attachment), 0
            try:
                self.shared = self._open(attachment)
            except HearthError as error:
                self._failed += _TRIES if error.reason == "UNSUPPORTED" else 1
            except OSError:
                self._failed += 1
            return self.shared

    def hopeless(self, attachment: Attachment) -> bool:
        """Whether it is known that nothing will be shared for that one. Does not wait."""
        if self._closed or not self._connection.transport.lanes or not memory_segments.possible():
            return True
        return self._failed >= _TRIES and self._for is not None and self._for() is attachment

    def _open(self, attachment: Attachment) -> Shared:
        request = device_pb2.OpenBulkRequest(
            session_token=self._connection.token,
            device=self._connection.ordinal,
            generation=attachment.session.generation,
        )
        answer = self._connection.transport.open_bulk(request)
        if not answer.tickets or not answer.path:
            raise OSError("the daemon gave no ticket")
        most = answer.max_segment_bytes
        opened = open_segments(answer.path, answer.tickets[0], most, self._connection.mint)
        return Shared(attachment, opened, answer.transfers)

    def close(self) -> None:
        """Ends what is shared; for good."""
        self._closed = True
        if self._pid == os.getpid():
            with self._lock:
                shared, self.shared = self.shared, None
            if shared is not None:
                shared.close()

    def forked(self) -> None:
        """In the child of a fork: takes no lock."""
        self._closed = True
        shared, self.shared = self.shared, None
        if shared is not None:
            shared.forked()
