"""A connected socket that two threads share, one for each direction, without copies of the transferred bytes.

If a peer stalls in the middle of a frame, `PipeStalled` is raised after `STALL_S` seconds. The system detects a peer
that has disappeared without closing the connection.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

STALL_S = 20.0
"""Seconds for which a peer may stall while a frame is partly sent or received."""

_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000))
"""TCP options, set if the system has them. Units: seconds, seconds, a number of probes, milliseconds."""
KeepWaiting = Callable[[], bool]
"""Callback that returns True to keep waiting, though nothing has arrived for a while."""

Part = bytes | bytearray | memoryview
T = TypeVar("T")
_SCRATCH = 256 << 10
"""Size, in bytes, of the memory into which `Pipe.skip` receives."""
_GATHERED = 32
"""Maximum number of small frames that are sent together."""


class PipeEnded(ConnectionError):
    """Raised if either side has closed the connection."""


class PipeStalled(TimeoutError):
    """Raised if the other side stalls."""


class Pipe:
    """Owns its socket. One thread calls `receive`, another one `send`; any thread may call `shutdown`."""

    def __init__(self, connection: socket.socket, stall: float = STALL_S) -> None:
        self._connection = connection
        self._stall = stall
        self._scratch: memoryview | None = None
        tune(connection)
        self._prepare()

    def _prepare(self) -> None:
        self._connection.setblocking(True)
        # Timeouts of the system: with a Python timeout, the socket would call `poll` before every call, and a read
        # would not fill the buffer in one call.
        seconds = int(self._stall)
        limit = seconds.to_bytes(8, "little") + int((self._stall - seconds) * 1e6).to_bytes(8, "little")
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def receive(self, buffer: memoryview, keep_waiting: KeepWaiting | None = None) -> None:
        """Fills `buffer`, and blocks until it is full.

        Raises `PipeEnded`, `OSError`, or `PipeStalled` (not while `keep_waiting` returns True).
        """
        received, size = 0, len(buffer)
        while received < size:
            try:
                count = self._connection.recv_into(buffer[received:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if keep_waiting is None or received or not keep_waiting():
                    raise stalled(self._stall) from None
                continue
            if not count:
                raise PipeEnded("the connection was closed")
            received += count

    def skip(self, size: int) -> None:
        """Receives `size` bytes and drops them. Blocks and raises like `receive`."""
        if self._scratch is None:
            self._scratch = memoryview(bytearray(_SCRATCH))
        while size:
            count = min(size, _SCRATCH)
            self.receive(self._scratch[:count])
            size -= count

    def send(self, parts: Sequence[Part]) -> None:
        """Sends all parts in order, and blocks until they are sent. Raises `PipeStalled` or `OSError`."""
        remaining = sum(map(len, parts))
        while True:
            try:
                sent = self._connection.sendmsg(parts, (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                raise stalled(self._stall) from None
            remaining -= sent
            if not remaining:
                return
            parts = _without_sent(parts, sent)

    def shutdown(self) -> None:
        """Ends both directions and wakes the threads in `receive` and `send`. A second call does nothing."""
        with contextlib.suppress(OSError):
            # Not the method of SSLSocket: after it, the other thread would continue without TLS.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. Called when no thread uses it any more."""
        self._connection.close()


def take_frames(outgoing: SimpleQueue[bytes | T | None]) -> tuple[list[Part], T | None] | None:
    """Waits for frames to send, and takes those that are sent together: small ones, up to the first chunk.

    Returns:
        The small frames and the chunk after them, if there is one; None at the None that ends the queue.
    """
    parts: list[Part] = []
    while not parts or (len(parts) < _GATHERED and not outgoing.empty()):
        item = outgoing.get()
        if item is None:
            return None
        if not isinstance(item, bytes):
            return parts, item
        parts.append(item)
    return parts, None


def tune(connection: socket.socket) -> None:
    """Sets TCP options: small frames are sent immediately, and a peer that has disappeared is detected."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive_within(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Receives exactly `size` bytes from a socket before it becomes a pipe, until the deadline (`time.monotonic`).

    Raises `OSError`.
    """
    data = b""
    while len(data) < size:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise PipeStalled("no data arrived in time")
        connection.settimeout(remaining)
        piece = connection.recv(size - len(data))
        if not piece:
            raise PipeEnded("the connection was closed")
        data += piece
    return data


def _without_sent(parts: Sequence[Part], sent: int) -> list[Part]:
    """Returns the parts without their first `sent` bytes."""
    remaining: list[Part] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            remaining.append(memoryview(part)[sent:] if sent else part)
            sent = 0
    return remaining


def stalled(seconds: float) -> PipeStalled:
    """Returns the error to raise if the peer made no progress for `seconds`."""
    return PipeStalled(f"the peer made no progress for {seconds:g} s")
