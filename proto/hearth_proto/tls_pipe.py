"""A pipe over TLS."""

from __future__ import annotations

import select
import ssl
import threading
from collections.abc import Sequence

from hearth_proto.pipes import STALL_S, KeepWaiting, Part, Pipe, PipeEnded, stalled

_RECORD = 256 << 10
"""Maximum number of bytes that are passed to TLS at a time: while they are encrypted, the other direction waits."""


class TlsPipe(Pipe):
    """Pipe over a TLS connection that has completed its handshake.

    Only one thread at a time calls OpenSSL, which never blocks.
    """

    _connection: ssl.SSLSocket

    def __init__(self, connection: ssl.SSLSocket, stall: float = STALL_S) -> None:
        self._lock = threading.Lock()
        super().__init__(connection, stall)

    def _prepare(self) -> None:
        self._connection.setblocking(False)

    def receive(self, buffer: memoryview, keep_waiting: KeepWaiting | None = None) -> None:
        """Fills `buffer`, and blocks until it is full; another thread may call `send` meanwhile.

        Raises like `Pipe.receive`, and `ssl.SSLError`, which is an `OSError`.
        """
        received, size = 0, len(buffer)
        while received < size:
            try:
                with self._lock:
                    count = self._connection.recv_into(buffer[received:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self._wait(error, keep_waiting if not received else None)
                continue
            if not count:
                raise PipeEnded("the connection was closed")
            received += count

    def send(self, parts: Sequence[Part]) -> None:
        """Sends all parts in order, and blocks until they are sent; another thread may call `receive` meanwhile.

        Raises like `Pipe.send`, and `ssl.SSLError`, which is an `OSError`.
        """
        for part in parts:
            with memoryview(part) as view:
                position = 0
                while position < len(view):
                    try:
                        with self._lock:
                            position += self._connection.send(view[position : position + _RECORD])
                    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                        self._wait(error, None)

    def _wait(self, error: ssl.SSLError, keep_waiting: KeepWaiting | None) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT)
        while not poll.poll(self._stall * 1e3):
            if keep_waiting is None or not keep_waiting():
                raise stalled(self._stall)
