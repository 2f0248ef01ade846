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
_TWO = 2 * _HEAD
_NO_WORD = memoryview(bytes(8)).cast("Q")
_GLANCES = range(8)
"""Number of reads of the signal word between two polls of the socket, each of which takes ten times as long as a
read."""
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

Came: TypeAlias = tuple[int, int, bytes]
"""Kind, id and payload of a received frame. Not a `Frame`, because building one takes longer than all other processing
of a short frame."""


class LaneEnded(OSError):
    """Raised if the other side closed the lane."""


def open_lane(path: str, ticket: bytes, seconds: float = LIVE_S) -> Lane | None:
    """Connects to `path`, presents the ticket and waits for the device process's first frame.

    Args:
        path: Path of the daemon's Unix socket for tickets.
        ticket: Ticket that the daemon offered; valid once.
        seconds: Timeout in seconds.

    Returns:
        The lane, or None if it could not be opened.
    """
    deadline = monotonic() + seconds
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(frames.encode(Kind.TICKET, ticket))
        reader = FrameReader()
        came: list[Frame] = []
        while not came:
            connection.settimeout(max(1e-3, deadline - monotonic()))
            data = connection.recv(_READ_BYTES)
            if not data:
                raise LaneEnded("the ticket was refused")
            came = reader.feed(data)
        if came[0].kind != Kind.LIVE:
            raise FrameError(f"a lane began with a frame of kind {came[0].kind}")
        connection.settimeout(None)
    except (OSError, FrameError, ValueError):  # invalid path, no listener, or no answer
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return Lane(connection, reader, came[1:])


class Lane:
    """The client's end of a lane. Only one thread receives at a time; sending threads hold a separate lock."""

    def __init__(self, connection: socket.socket, reader: FrameReader, came: list[Frame]) -> None:
        self._connection = connection
        self._reader = reader
        self._came = [(frame.kind, frame.id, frame.payload) for frame in came]
        self._raw: deque[bytes] = deque()
        """Received bytes that are not split into frames yet."""
        # `deque.extend` calls `recv` and stores the result without executing bytecode in between. A Ctrl-C comes either
        # before, when nothing has been taken from the socket, or after, when the bytes are stored.
        self._short = map(connection.recv, repeat(_READ_BYTES))
        self._long = map(connection.recv, repeat(_LONG_READ_BYTES))
        self._rest = memoryview(b"")  # the unsent rest of a frame that the socket accepted in part
        self.blocked = False
        """True while the rest of a frame has to be sent before any other frame."""
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
            self._rest, self.blocked = memoryview(frame)[sent:], True

    def flush(self) -> None:
        """Sends more of the bytes that the socket did not accept."""
        with contextlib.suppress(BlockingIOError):
            self._rest = self._rest[self._connection.send(self._rest, _FLAGS) :]
            self.blocked = bool(self._rest)

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
        if self._raw or self._came:
            return True
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except (OSError, ValueError):  # the socket was released meanwhile: `receive` raises the error
            return True
        return bool(poll.poll(None if seconds is None else max(0.0, seconds * 1e3)))

    def look(self, deadline: float | None = None, word: memoryview[int] = _NO_WORD, number: int = 1) -> float:
        """Polls, without sleeping, for the next bytes or for `number` in `word`. Receives nothing.

        Polls first immediately, then near the predicted end of a copy, for as long as the adaptive spin-wait allows.

        Args:
            deadline: Monotonic time in seconds at which polling for a copy ends; None: without a limit.
            word: Signal word of the attachment's copies; the default never changes.
            number: Number of the request whose completion signal ends the polling.

        Returns:
            The monotonic time at which polling began, or 0 if it did not poll.
        """
        lookout = self.spin_wait
        if not lookout.most or self._raw or self._came:
            return 0.0
        began = monotonic()
        if not self._look(began + lookout.patience, word, number):
            due = lookout.poll_interval(monotonic())
            if due is not None:
                begins, ends = due if deadline is None else (min(due[0], deadline), min(due[1], deadline))
                if not self._sleep(begins):
                    self._look(ends, word, number)
        return began

    @property
    def ready(self) -> bool:
        """True if there is something to receive."""
        return bool(self._raw or self._came or self._poll.poll(0))

    def receive(self) -> None:
        """Blocks until bytes arrive, and stores them. Raises `OSError`. A `KeyboardInterrupt` loses no bytes."""
        if not (self._raw or self._came):
            self._raw.extend(islice(self._long if self._pending > _HEAD else self._short, 1))

    def _look(self, until: float, word: memoryview[int], number: int) -> bool:
        """Polls for bytes or for `number` in `word` until the monotonic time `until`. Returns False if neither came."""
        poll = self._poll.poll
        glances = () if word is _NO_WORD else _GLANCES
        while not poll(0):
            for _ in glances:
                if word[0] == number:
                    return True
            if monotonic() > until:
                return False
        return True

    def _sleep(self, until: float) -> bool:
        """Sleeps until bytes arrive, at most until the monotonic time `until`.

        Returns True if they arrived. Uses `select`, because `poll` has a resolution of milliseconds only.
        """
        seconds = until - monotonic()
        if seconds <= 0:
            return False
        try:
            return bool(select.select((self._connection,), (), (), seconds)[0])
        except ValueError:  # too large for `select`, or the socket was released: then `receive` raises the error
            return True

    def frames(self) -> list[Came]:
        """Returns the complete frames of the received bytes.

        Raises `LaneEnded`, or `FrameError` for an invalid frame. An interrupted call leaves the lane unusable.
        """
        came, self._came, raw = self._came, [], self._raw
        while raw:
            data = raw.popleft()
            if not data:
                raise LaneEnded("the daemon closed the lane")
            at, size = 0, len(data)
            # Most often there are one or two short complete frames: they are split here, which is faster than the
            # general reader. An ack and the answer that follows it arrive together.
            if size > _TWO and not self._pending:
                empty, kind, _, _, ident, length, second, _, _, about = _unpack_two(data)
                if not empty and _TWO + length == size:
                    came += (kind, ident, b""), (second, about, data[_TWO:])
                    continue
            while not self._pending and size - at >= _HEAD:
                length, kind, _, _, ident = _unpack(data, at)
                end = at + _HEAD + length
                if end > size:
                    break
                came.append((kind, ident, data[at + _HEAD : end]))
                at = end
            if at < size:
                came += [(frame.kind, frame.id, frame.payload) for frame in self._reader.feed(data[at:])]
                self._pending = self._reader.pending
        return came

    def close(self) -> None:
        """Ends the lane for both sides. Wakes a thread that receives or waits to send."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Closes the descriptor, once no thread uses it. In a forked child, the parent's lane continues."""
        self._connection.close()
