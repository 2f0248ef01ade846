"""A connected socket that two threads share, one for each way: bytes go directly from and to the memory where they lie.

A peer that stands still in the middle of something is given up after a while; so is one that is
gone without a word, which the system finds out.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence

STALL_S = 20.0
"""Seconds that a peer may stand still with a part of a frame sent, or taken."""

_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000))
"""Seconds, a count, milliseconds; where the system has them."""
Patient = Callable[[], bool]
"""Returns True to keep waiting, though nothing came for a while."""

Part = bytes | bytearray | memoryview


class PipeEnded(ConnectionError):
    """The other side has closed the connection, or this one."""


class PipeStalled(TimeoutError):
    """The other side stands still."""


class Pipe:
    """Owns its socket. `receive` belongs to one thread, `send` to another, `shutdown` to any thread."""

    def __init__(self, connection: socket.socket, stall: float = STALL_S) -> None:
        self._connection = connection
        self._stall = stall
        tune(connection)
        self._prepare()

    def _prepare(self) -> None:
        self._connection.setblocking(True)
        # The system's own limits: a socket with Python's would ask `poll` before every call, and not be filled at once.
        whole = int(self._stall)
        limit = whole.to_bytes(8, "little") + int((self._stall - whole) * 1e6).to_bytes(8, "little")
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def receive(self, into: memoryview, patient: Patient | None = None) -> None:
        """Fills `into`. Raises `PipeEnded`, `PipeStalled` (not while `patient`), OSError."""
        got, size = 0, len(into)
        while got < size:
            try:
                count = self._connection.recv_into(into[got:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if patient is None or got or not patient():
                    raise stalled(self._stall) from None
                continue
            if not count:
                raise PipeEnded("the connection was closed")
            got += count

    def send(self, parts: Sequence[Part]) -> None:
        """Sends all of them, one behind the other. Raises `PipeStalled`, OSError."""
        left = sum(map(len, parts))
        while True:
            try:
                sent = self._connection.sendmsg(parts, (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                raise stalled(self._stall) from None
            left -= sent
            if not left:
                return
            parts = _behind(parts, sent)

    def shutdown(self) -> None:
        """Ends both directions and wakes threads in `receive` and `send`. A second call does nothing."""
        with contextlib.suppress(OSError):
            # Not the method of SSLSocket: after that one, its other thread would continue without TLS.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the socket back; when no thread is inside any more."""
        self._connection.close()


def tune(connection: socket.socket) -> None:
    """Small frames go at once, and a peer that is gone without a word is noticed."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive_within(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Receives exactly `size` bytes of a socket that is no pipe yet, by the deadline (`time.monotonic`). Raises
    OSError."""
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PipeStalled("nothing came in time")
        connection.settimeout(left)
        piece = connection.recv(size - len(data))
        if not piece:
            raise PipeEnded("the connection was closed")
        data += piece
    return data


def _behind(parts: Sequence[Part], sent: int) -> list[Part]:
    """Returns the parts without their first `sent` bytes."""
    left: list[Part] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            left.append(memoryview(part)[sent:] if sent else part)
            sent = 0
    return left


def stalled(seconds: float) -> PipeStalled:
    return PipeStalled(f"the other side has stood still for {seconds:g} s")
