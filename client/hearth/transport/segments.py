"""A connection to a device process over which segments of memory are shared with it: frames, with file descriptors.

The connection belongs to one attachment. Commands may name a segment after the device process has accepted it here.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import from_status
from hearth.transport.lane import connect_with_ticket
from hearth_proto import frames
from hearth_proto.frames import PLACE, FrameError, FrameReader, Kind
from hearth_proto.v1.status_pb2 import Status

if TYPE_CHECKING:
    from hearth.transport.memory_segments import Segment
    from hearth_proto.frames import Frame

LIVE_S = 2.0
"""Timeout, in seconds, for a new connection to go live."""
REGISTER_S = 10.0
REGISTER_GIB_S = 1.0
"""Timeout of the answer to a registered segment: `REGISTER_S` seconds, and `REGISTER_GIB_S` more for each GiB of the
segment."""
POLL_VALID_S = 10e-3
"""Seconds for which a check of the connection remains valid for a thread that repeats the same copy. The connection
ends with one of the two processes, which the lane reports as well; a command sent meanwhile fails, like those in
flight."""
_FULL = "QUOTA_EXCEEDED"
_READ_BYTES = 64 << 10
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT  # a constant, because building it costs 1 us each time


class ConnectionLost(OSError):
    """Raised if the device process, or the connection to it, has ended."""


def open_segments(
    path: str, ticket: bytes, max_bytes: int, mint: Callable[[], int], seconds: float = LIVE_S
) -> SegmentConnection:
    """Opens a connection for segments.

    Args:
        path: Path of the daemon's Unix socket for tickets.
        ticket: Ticket from `OpenBulk`; valid once.
        max_bytes: Maximum number of bytes that may be registered.
        mint: Returns numbers that the session has not used.
        seconds: Timeout in seconds.

    Raises:
        OSError: The connection could not be opened.
    """
    try:
        connection, _, _ = connect_with_ticket(path, ticket, seconds)
    except (FrameError, ValueError) as error:
        raise ConnectionLost(str(error)) from None
    return SegmentConnection(connection, max_bytes, mint)


class _Sent(NamedTuple):
    """A segment that was sent to the device process and not released since."""

    number: int
    size: int
    reference: weakref.ref[Segment]


class SegmentConnection:
    """The client's end of the connection. Only answers arrive over it, so the requesting thread also receives."""

    def __init__(self, connection: socket.socket, max_bytes: int, mint: Callable[[], int]) -> None:
        self.max_bytes = max_bytes
        """Maximum total size, in bytes, of registered segments."""
        self.registered_bytes = 0
        self.ever_accepted = False
        """True once a segment was accepted."""
        self._connection = connection
        self._mint = mint
        self._reader = FrameReader()
        self._lock = threading.Lock()
        self._numbers: dict[int, int] = {}
        """Numbers that commands may use, by segment."""
        self._sent: dict[int, _Sent] = {}
        self._refused: set[int] = set()
        self._placements: dict[int, bool | None] = {}
        """Transfers whose placement was requested, with the answer: True if accepted; None: no answer yet."""
        self._collected: deque[int] = deque()
        """Numbers of segments of `_sent` that have been garbage-collected."""
        self.closed = False
        """True once the connection is known, without polling, to be closed."""
        self.poll_valid_s = POLL_VALID_S
        """Seconds for which the outcome of a poll of the connection holds."""
        self._last_poll = -self.poll_valid_s

    # ---- state ----

    @property
    def alive(self) -> bool:
        """True if the connection can be used. Polls the connection."""
        if self.closed:
            return False
        self._last_poll = time.monotonic()
        try:
            data = self._connection.recv(1, _PEEK)
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            data = b""
        if not data:
            self.close()
        return bool(data)

    @property
    def recently_alive(self) -> bool:
        """True if the connection is open, as of a poll within the last `poll_valid_s` seconds.

        Polls it if the last poll was earlier.
        """
        return not self.closed and (time.monotonic() - self._last_poll < self.poll_valid_s or self.alive)

    def fileno(self) -> int:
        """Returns the socket's descriptor; -1 once it is released."""
        return self._connection.fileno()

    def close(self) -> None:
        """Ends the connection for both sides."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Ends the connection, and closes its descriptor once no thread uses it."""
        self.close()
        with self._lock:
            self._connection.close()

    def forked(self) -> None:
        """Closes the descriptor in the child process of a fork, without the lock, which another thread may have held.

        The parent's connection continues.
        """
        self.closed = True
        self._connection.close()

    # ---- segments ----

    def number(self, segment: Segment) -> int:
        """Returns the number by which commands name the segment; 0: commands may not use it.

        Args:
            segment: Segment of this process.
        """
        return 0 if self.closed else self._numbers.get(segment.number, 0)

    def register(self, segment: Segment, *, signals: bool = False) -> int:
        """Makes the device process map the segment, and waits for that.

        Args:
            segment: Segment of this process.
            signals: True if the segment holds completion signals (`memory_segments.Signals`).

        Returns:
            The number by which commands name the segment, or 0 if the device process refuses it or the total size would
            exceed `max_bytes`.

        Raises:
            ConnectionLost: The connection has ended.
        """
        ident = segment.number
        if ident in self._numbers and not self.closed:
            return self._numbers[ident]
        try:
            with self._lock:
                return self._register(segment, signals)
        finally:
            self._sweep()

    def _register(self, segment: Segment, signals: bool) -> int:
        ident = segment.number
        self._release_collected()
        if self.closed:
            raise ConnectionLost("the connection was closed")
        if ident in self._numbers:
            return self._numbers[ident]
        if ident in self._refused:
            return 0
        try:
            sent = self._sent.get(ident)  # an earlier wait for its answer may have been interrupted
            if sent is None:
                if self.registered_bytes + segment.size > self.max_bytes:
                    return 0
                sent = self._send(segment, signals)
            return sent.number if self._wait_accepted(ident, sent) else 0
        except (OSError, FrameError, ValueError) as error:
            self.close()
            raise ConnectionLost(str(error)) from None

    def place(self, kind: Kind, transfer: int, segment: Segment, offset: int, size: int) -> bool:
        """Asks the device process to copy the bytes of `transfer` from the segment or to it, and waits for its answer.

        Args:
            kind: ``Kind.UPLOAD`` (from the segment) or ``Kind.DOWNLOAD`` (to it).
            transfer: Number of the transfer.
            segment: Registered segment.
            offset: Offset of the bytes in the segment, in bytes.
            size: Number of bytes.

        Returns:
            True if the device process copies, immediately or when the command runs, even if this connection ends; False
            if it does not.

        Raises:
            ConnectionLost: The outcome is unknown.
        """
        try:
            with self._lock:
                return self._place(kind, transfer, segment, offset, size)
        finally:
            self._sweep()

    def _place(self, kind: Kind, transfer: int, segment: Segment, offset: int, size: int) -> bool:
        self._release_collected()
        number = self.number(segment)
        if not number:
            return False
        try:
            frame = frames.encode(kind, PLACE.pack(number, offset, size), id=transfer)
            self._placements[transfer] = None
            self._put(frame, [], time.monotonic() + REGISTER_S)
            deadline = time.monotonic() + REGISTER_S
            while (accepted := self._placements[transfer]) is None:
                self.process_answers(deadline)
            del self._placements[transfer]
            return accepted
        except (OSError, FrameError, ValueError) as error:
            self.close()
            raise ConnectionLost(str(error)) from None

    def _send(self, segment: Segment, signals: bool) -> _Sent:
        ident = segment.number
        sent = _Sent(self._mint(), segment.size, weakref.ref(segment, lambda _: self._record_collected(ident)))
        body: dict[str, int] = {"size": segment.size}
        if signals:
            body["signals"] = True
        frame = frames.encode(Kind.SEGMENT, json.dumps(body).encode(), id=sent.number)
        self._put(frame, [segment.descriptor], time.monotonic() + REGISTER_S)
        self._sent[ident] = sent
        self.registered_bytes += segment.size
        return sent

    def _put(self, frame: bytes, descriptors: list[int], deadline: float) -> None:
        try:
            self._wait(select.POLLOUT, deadline)
            sent = 0
            if descriptors:
                sent = socket.send_fds(self._connection, [frame], descriptors, _FLAGS)
            while sent < len(frame):
                self._wait(select.POLLOUT, deadline)
                sent += self._connection.send(frame[sent:], _FLAGS)
        except BaseException:  # KeyboardInterrupt: the frame may be partly sent
            self.close()
            raise

    def _wait_accepted(self, ident: int, sent: _Sent) -> bool:
        """Waits for the answer to a registration; returns True if commands may name the segment."""
        deadline = time.monotonic() + REGISTER_S + REGISTER_GIB_S * sent.size / (1 << 30)
        while ident not in self._numbers:
            if self._sent.get(ident) is not sent:
                return False
            self.process_answers(deadline)
        return True

    def process_answers(self, deadline: float) -> None:
        """Waits for the next answers, to any request, and processes them.

        The thread that sent a request may have been interrupted.

        Args:
            deadline: Monotonic time in seconds.

        Raises:
            ConnectionLost: The daemon has closed the connection, or nothing arrived by the deadline.
        """
        received: list[Frame] = []
        while not received:
            self._wait(select.POLLIN, deadline)
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionLost("the daemon closed the connection")
            received = self._reader.feed(data)
        for frame in received:
            ident = next((ident for ident, entry in self._sent.items() if entry.number == frame.id), None)
            if ident is not None and frame.kind == Kind.SEGMENT:
                self._numbers[ident] = frame.id
                self.ever_accepted = True
            elif ident is not None and frame.kind == Kind.ABORT:
                self.registered_bytes -= self._sent.pop(ident).size
                if from_status(Status.FromString(frame.payload)).reason != _FULL:
                    self._refused.add(ident)
            elif frame.id in self._placements and frame.kind in (Kind.UPLOAD, Kind.DOWNLOAD, Kind.ABORT):
                self._placements[frame.id] = frame.kind != Kind.ABORT
            else:
                raise FrameError(f"a frame of kind {frame.kind} arrived for the unknown id {frame.id}")

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise ConnectionLost("the daemon did not answer in time")

    # ---- release of segments ----

    def _record_collected(self, ident: int) -> None:
        """Records that the segment was garbage-collected.

        Called by the collector, perhaps in a thread that holds the lock.
        """
        self._collected.append(ident)
        self._sweep()

    def _sweep(self) -> None:
        """Releases the segments that were collected, unless a thread, perhaps this one, holds the lock.

        That thread calls this method afterwards.
        """
        while self._collected and not self._lock.locked():
            with self._lock:  # not `acquire`, after which a Ctrl-C would leave the lock held
                self._release_collected()
                if self._collected:
                    return  # the connection has ended, or has no room

    def _release_collected(self) -> None:
        """Notifies the device process of segments that no command will name again. Never blocks."""
        while self._collected and not self.closed:
            ident = self._collected[0]
            sent = self._sent.get(ident)
            if sent is not None:
                frame = frames.encode(Kind.RELEASE, id=sent.number)
                try:
                    self._connection.send(frame, _FLAGS)
                except BlockingIOError:
                    return
                except OSError:
                    self.close()
                    return
                del self._sent[ident]
                self.registered_bytes -= sent.size
            self._collected.popleft()
            self._numbers.pop(ident, None)
            self._refused.discard(ident)
