"""A lane: frames over a Unix socket, straight to the device process, past gRPC and the daemon's front.

Sending never waits: what the socket does not take is kept, and `flush` goes on with it once `writable`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TYPE_CHECKING

from hearth_proto import frames
from hearth_proto.frames import FrameError, FrameReader, Kind

if TYPE_CHECKING:
    from hearth_proto.frames import Frame

LIVE_S = 1.0
"""So long a lane may take to come to life."""
_READ_BYTES = 256 << 10
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


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
    """The client's end. One thread receives; who sends does so under a lock of its own."""

    def __init__(self, connection: socket.socket, reader: FrameReader, came: list[Frame]) -> None:
        self._connection = connection
        self._reader = reader
        self._came = came
        self._rest = memoryview(b"")  # of a frame that the socket took a part of

    @property
    def blocked(self) -> bool:
        """Whether something has to go out before anything else may."""
        return bool(self._rest)

    def send(self, seq: int, request: bytes) -> None:
        """Sends an `ExecuteRequest`, `seq` its batch or 0, as far as the socket takes it. Not while `blocked`."""
        frame = frames.header(Kind.BATCH, len(request), id=seq) + request
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

    def receive(self) -> list[Frame]:
        """Waits for the next frames. Raises `OSError` at the lane's end, `FrameError` for what is no frame."""
        came, self._came = self._came, []
        while not came:
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise LaneEnded("the daemon closed the lane")
            came = self._reader.feed(data)
        return came

    def close(self) -> None:
        """Ends it for both sides; who receives or waits to send is woken."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the descriptor back, once nobody uses it; in a forked child the parent's lane goes on."""
        self._connection.close()
