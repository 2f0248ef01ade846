"""A lane: frames over a Unix socket directly to the device process, bypassing gRPC and the front.

Sending never blocks: bytes that the socket does not accept are kept, and `flush` sends them once the socket is
writable.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import deque
from itertools import islice, repeat
from time import monotonic
from typing import TypeAlias

from hearth.transport.spin_wait import SpinWait
from hearth_proto import frames
from hearth_proto.frames import HEADER, Frame, FrameError, FrameReader, Kind

LIVE_S = 1.0
"""Timeout, in seconds, for a new lane to go live."""
_READ_BYTES = 64 << 10
_LONG_READ_BYTES = 256 << 10
"""Size, in bytes, of a read while a longer frame is incomplete. Not the default, because Python maps and unmaps memory
of that size for each read, which takes 15 us."""
_BATCH = int(Kind.BATCH)
_HEAD = HEADER.size
_unpack = HEADER.unpack_from
_unpack_two = struct.Struct(HEADER.format + HEADER.format[1:]).unpack_from
_TWO_HEADS = 2 * _HEAD
_NO_WORD = memoryview(bytes(8)).cast("Q")
_WORD_READS = range(8)
"""Number of reads of the signal word between two polls of the socket, each of which takes ten times as long as a
read."""
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

ReceivedFrame: TypeAlias = tuple[int, int, bytes]
"""Kind, id and payload of a received frame. Not a `Frame`, because building one takes longer than all other processing
of a short frame."""


class LaneEnded(OSError):
    """Raised if the other side closed the lane."""


def connect_with_ticket(path: str, ticket: bytes, seconds: float) -> tuple[socket.socket, FrameReader, list[Frame]]:
    """Connects to `path`, presents the ticket and waits for the device process's first frame.

    Args:
        path: Path of the daemon's Unix socket for tickets.
        ticket: Ticket of the daemon; valid once.
        seconds: Timeout in seconds.

    Returns:
        The connection, the reader of its frames, and the frames received after the first one.

    Raises:
        OSError: There is no listener, the ticket was refused, or no frame has arrived in time.
        FrameError: The first frame is not LIVE.
        ValueError: The path is invalid.
    """
    deadline = monotonic() + seconds
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(frames.encode(Kind.TICKET, ticket))
        reader = FrameReader()
        received: list[Frame] = []
        while not received:
            connection.settimeout(max(1e-3, deadline - monotonic()))
            data = connection.recv(_READ_BYTES)
            if not data:
                raise LaneEnded("the ticket was refused")
            received = reader.feed(data)
        if received[0].kind != Kind.LIVE:
            raise FrameError(f"the connection began with a frame of kind {received[0].kind}")
        connection.settimeout(None)  # with a Python timeout, MSG_DONTWAIT would block
    except BaseException:
        connection.close()
        raise
    return connection, reader, received[1:]


def open_lane(path: str, ticket: bytes, seconds: float = LIVE_S) -> Lane | None:
    """Opens a lane; returns None if it could not be opened.

    Args:
        path: Path of the daemon's Unix socket for tickets.
        ticket: Ticket that the daemon offered; valid once.
        seconds: Timeout in seconds.
    """
    try:
        return Lane(*connect_with_ticket(path, ticket, seconds))
    except (OSError, FrameError, ValueError):
        return None


class Lane:
    """The client's end of a lane. Only one thread receives at a time; sending threads hold a separate lock."""

    def __init__(self, connection: socket.socket, reader: FrameReader, received: list[Frame]) -> None:
        self._connection = connection
        self._reader = reader
        self._received = [(frame.kind, frame.id, frame.payload) for frame in received]
        self._raw: deque[bytes] = deque()
        """Received bytes that are not split into frames yet."""
        # `deque.extend` calls `recv` and stores the result without executing bytecode in between. A Ctrl-C comes either
        # before, when nothing has been taken from the socket, or after, when the bytes are stored.
        self._short = map(connection.recv, repeat(_READ_BYTES))
        self._long = map(connection.recv, repeat(_LONG_READ_BYTES))
        self._unsent = memoryview(b"")  # the unsent rest of a frame that the socket accepted in part
        self.blocked = False
        """True while the rest of a frame must be sent before any other frame."""
        self._pending = reader.pending
        """Size, in bytes, of the incomplete frame that the reader holds."""
        self.spin_wait = SpinWait(0)
        """Adaptive spin-wait of waiting threads; this default one never polls."""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def fileno(self) -> int:
        """Returns the socket's descriptor; -1 once it is released."""
        return self._connection.fileno()

    def send(self, seq: int, request: bytes) -> None:
        """Sends a serialized `ExecuteRequest`, as far as the socket accepts it. Must not be called while `blocked`.

        Args:
            seq: Sequence number of the batch; 0: the request is not a batch.
            request: Serialized request.
        """
        frame = HEADER.pack(len(request), _BATCH, 0, 0, seq) + request
        try:
            sent = self._connection.send(frame, _FLAGS)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            self._unsent, self.blocked = memoryview(frame)[sent:], True

    def flush(self) -> None:
        """Sends more of the bytes that the socket did not accept."""
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self._connection.send(self._unsent, _FLAGS) :]
            self.blocked = bool(self._unsent)

    def writable(self) -> None:
        """Blocks until the socket accepts more bytes or is closed."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):  # the socket was released meanwhile
            poll.register(self._connection, select.POLLOUT)
            poll.poll()

    def readable(self, seconds: float | None = None) -> bool:
        """Blocks until there is something to receive, or the lane has ended.

        Receives nothing, so that another thread may receive meanwhile.

        Args:
            seconds: Longest wait in seconds; None: without a limit.

        Returns:
            False after the timeout.
        """
        if self._raw or self._received:
            return True
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except (OSError, ValueError):  # the socket was released meanwhile: `receive` raises the error
            return True
        return bool(poll.poll(None if seconds is None else max(0.0, seconds * 1e3)))

    def spin(self, deadline: float | None = None, word: memoryview[int] = _NO_WORD, number: int = 1) -> float:
        """Polls, without sleeping, for the next bytes or for `number` in `word`. Receives nothing.

        Polls first immediately, then near the predicted end of a copy, for as long as the adaptive spin-wait allows.

        Args:
            deadline: Monotonic time in seconds at which polling for a copy ends; None: without a limit.
            word: Signal word of the attachment's copies; the default never changes.
            number: Number of the request whose completion signal ends the polling.

        Returns:
            The monotonic time at which polling began, or 0 if it did not poll.
        """
        spin_wait = self.spin_wait
        if not spin_wait.max_spin_s or self._raw or self._received:
            return 0.0
        started = monotonic()
        if not self._spin_until(started + spin_wait.spin_s, word, number):
            interval = spin_wait.poll_interval(monotonic())
            if interval is not None:
                start, end = interval if deadline is None else (min(interval[0], deadline), min(interval[1], deadline))
                if not self._sleep(start):
                    self._spin_until(end, word, number)
        return started

    @property
    def ready(self) -> bool:
        """True if there is something to receive."""
        return bool(self._raw or self._received or self._poll.poll(0))

    def receive(self) -> None:
        """Blocks until bytes arrive, and stores them. Raises `OSError`. A `KeyboardInterrupt` loses no bytes."""
        if not (self._raw or self._received):
            self._raw.extend(islice(self._long if self._pending > _HEAD else self._short, 1))

    def _spin_until(self, deadline: float, word: memoryview[int], number: int) -> bool:
        """Polls for bytes or for `number` in `word` until the monotonic time `deadline`.

        Returns False if neither has arrived by then.
        """
        poll = self._poll.poll
        word_reads = () if word is _NO_WORD else _WORD_READS
        while not poll(0):
            for _ in word_reads:
                if word[0] == number:
                    return True
            if monotonic() > deadline:
                return False
        return True

    def _sleep(self, deadline: float) -> bool:
        """Sleeps until bytes arrive, at most until the monotonic time `deadline`.

        Returns True if they arrived. Uses `select`, because `poll` has a resolution of milliseconds only.
        """
        seconds = deadline - monotonic()
        if seconds <= 0:
            return False
        try:
            return bool(select.select((self._connection,), (), (), seconds)[0])
        except ValueError:  # too large for `select`, or the socket was released: then `receive` raises the error
            return True

    def frames(self) -> list[ReceivedFrame]:
        """Returns the complete frames of the received bytes.

        Raises `LaneEnded`, or `FrameError` for an invalid frame. An interrupted call leaves the lane unusable.
        """
        received, self._received, raw = self._received, [], self._raw
        while raw:
            data = raw.popleft()
            if not data:
                raise LaneEnded("the daemon closed the lane")
            offset, size = 0, len(data)
            # Most often there are one or two short complete frames: they are split here, which is faster than the
            # general reader. An ack and the answer that follows it arrive together.
            if size > _TWO_HEADS and not self._pending:
                first_length, kind, _, _, ident, length, second_kind, _, _, second_id = _unpack_two(data)
                if not first_length and _TWO_HEADS + length == size:
                    received += (kind, ident, b""), (second_kind, second_id, data[_TWO_HEADS:])
                    continue
            while not self._pending and size - offset >= _HEAD:
                length, kind, _, _, ident = _unpack(data, offset)
                end = offset + _HEAD + length
                if end > size:
                    break
                received.append((kind, ident, data[offset + _HEAD : end]))
                offset = end
            if offset < size:
                received += [(frame.kind, frame.id, frame.payload) for frame in self._reader.feed(data[offset:])]
                self._pending = self._reader.pending
        return received

    def close(self) -> None:
        """Ends the lane for both sides. Wakes a thread that receives or waits to send."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Closes the descriptor, once no thread uses it. In a forked child, the parent's lane continues."""
        self._connection.close()
