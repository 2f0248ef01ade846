"""A lane: frames over a Unix socket, straight to the device process, past gRPC and the daemon's front.

Sending never waits: what the socket does not take is kept, and `flush` goes on with it once `writable`.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections import deque
from itertools import islice, repeat
from typing import TYPE_CHECKING

from hearth_proto import frames
from hearth_proto.frames import HEADER, Frame, FrameError, FrameReader, Kind

if TYPE_CHECKING:
    from hearth.lookout import Lookout

LIVE_S = 1.0
"""So long a lane may take to come to life."""
_READ_BYTES = 64 << 10
_LONG_READ_BYTES = 256 << 10
"""While a frame is under way that is longer than what has come of it. Not always: memory for so much is mapped and
unmapped each time, which takes 15 us."""
_BATCH = int(Kind.BATCH)
_HEAD = HEADER.size
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


_LATE_S = 0.1e-3
"""What a thread that slept is woken late: the system's slack is 50 us."""
_MOST_S = 10.0
"""What is farther ahead is slept for."""


class LaneEnded(OSError):
    """The other side closed the lane."""


def open_lane(path: str, ticket: bytes, seconds: float = LIVE_S) -> Lane | None:
    """Connects, shows the ticket and waits for the device process's first frame; None where it does not come."""
    deadline = time.monotonic() + seconds
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(frames.encode(Kind.TICKET, ticket))
        reader = FrameReader()
        came: list[Frame] = []
        while not came:
            connection.settimeout(max(1e-3, deadline - time.monotonic()))
            data = connection.recv(_READ_BYTES)
            if not data:
                raise LaneEnded("the ticket was not taken")
            came = reader.feed(data)
        if came[0].kind != Kind.LIVE:
            raise FrameError(f"a lane begins with frame {came[0].kind}")
        connection.settimeout(None)
    except (OSError, FrameError, ValueError):  # a path that is none, nobody there, no answer
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return Lane(connection, reader, came[1:])


class Lane:
    """The client's end. One thread at a time receives; who sends does so under a lock of its own."""

    def __init__(self, connection: socket.socket, reader: FrameReader, came: list[Frame]) -> None:
        self._connection = connection
        self._reader = reader
        self._came = came
        self._raw: deque[bytes] = deque()
        """What has come and is not cut into frames."""
        # `deque.extend` calls `recv` and keeps what it returns without a step of the interpreter between: a Ctrl-C
        # comes before, and nothing was taken from the socket, or after, and it is kept.
        self._short = map(connection.recv, repeat(_READ_BYTES))
        self._long = map(connection.recv, repeat(_LONG_READ_BYTES))
        self._rest = memoryview(b"")  # of a frame that the socket took a part of

    @property
    def blocked(self) -> bool:
        """Whether something has to go out before anything else may."""
        return bool(self._rest)

    def send(self, seq: int, request: bytes) -> None:
        """Sends an `ExecuteRequest`, `seq` its batch or 0, as far as the socket takes it. Not while `blocked`."""
        frame = HEADER.pack(len(request), _BATCH, 0, 0, seq) + request
        sent = self._send(frame)
        if sent < len(frame):
            self._rest = memoryview(frame)[sent:]

    def flush(self) -> None:
        """Goes on with what the socket did not take."""
        self._rest = self._rest[self._send(self._rest) :]

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._connection.send(data, _FLAGS)
        except BlockingIOError:
            return 0

    def writable(self) -> None:
        """Waits until the socket takes more, or is closed."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):  # released meanwhile
            poll.register(self._connection, select.POLLOUT)
            poll.poll()

    def readable(self, seconds: float | None = None) -> bool:
        """Waits until there is something to receive, or the end; False where it was not there in time. Takes nothing,
        so that another may receive it meanwhile."""
        if self._raw or self._came:
            return True
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except (OSError, ValueError):  # released meanwhile: to receive says so
            return True
        return bool(poll.poll(None if seconds is None else max(0.0, seconds * 1e3)))

    def look_out(self, lookout: Lookout) -> None:
        """Returns when there may be something to receive; before that it is asked for, without a sleep, while it is
        likely to come. Takes nothing."""
        if lookout.ahead == math.inf or self._raw or self._came:
            return
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
            number = self._connection.fileno()
            whole = int((min(lookout.ahead, _MOST_S) - _LATE_S) * 1e3)  # milliseconds
            if whole > 0 and poll.poll(whole):
                return
            rest = lookout.ahead - _LATE_S
            if 0 < rest < _MOST_S and _select(number, rest):
                return
        except (OSError, ValueError):  # released meanwhile: to receive says so
            return
        while lookout.ahead <= 2 * _LATE_S and not poll.poll(0):
            pass

    def receive(self) -> None:
        """Waits for the next bytes, and keeps them. Raises `OSError`. A `KeyboardInterrupt` loses nothing."""
        if not (self._raw or self._came):
            self._raw.extend(islice(self._long if self._reader.pending > _HEAD else self._short, 1))

    def frames(self) -> list[Frame]:
        """What has come whole of what was received. Raises `LaneEnded`, and `FrameError` for what is no frame. Where it
        is interrupted the lane is of no more use."""
        came, self._came = self._came, []
        while self._raw:
            data = self._raw.popleft()
            if not data:
                raise LaneEnded("the daemon closed the lane")
            came += self._cut(data)
        return came

    def _cut(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Most often it is one or two short ones, whole: those are cut without the
        reader, which is ready for everything."""
        if self._reader.pending:
            return self._reader.feed(data)
        came: list[Frame] = []
        at, size = 0, len(data)
        while size - at >= _HEAD:
            length, kind, flags, channel, ident = HEADER.unpack_from(data, at)
            end = at + _HEAD + length
            if end > size:
                break
            came.append(Frame(kind, flags, channel, ident, data[at + _HEAD : end]))
            at = end
        return came if at == size else came + self._reader.feed(data[at:] if at else data)

    def close(self) -> None:
        """Ends it for both sides; who receives or waits to send is woken."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the descriptor back, once nobody uses it; in a forked child the parent's lane goes on."""
        self._connection.close()


def _select(number: int, seconds: float) -> bool:
    """Whether the descriptor became readable within so many seconds, to the microsecond."""
    if number >= 1024:  # FD_SETSIZE: more than `select` knows
        return False
    return bool(select.select((number,), (), (), seconds)[0])
