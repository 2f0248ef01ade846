"""A pipe over TLS."""

from __future__ import annotations

import select
import ssl
import threading
from collections.abc import Sequence

from hearth_proto.pipes import STALL_S, Part, Patient, Pipe, PipeEnded, stalled

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

    def receive(self, into: memoryview, patient: Patient | None = None) -> None:
        """Fills `into`, and blocks until then; another thread may call `send` meanwhile.

        Raises like `Pipe.receive`, and `ssl.SSLError`, which is an `OSError`.
        """
        got, size = 0, len(into)
        while got < size:
            try:
                with self._lock:
                    count = self._connection.recv_into(into[got:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                self._wait(want, patient if not got else None)
                continue
            if not count:
                raise PipeEnded("the connection was closed")
            got += count

    def send(self, parts: Sequence[Part]) -> None:
        """Sends all parts in order, and blocks until then; another thread may call `receive` meanwhile.

        Raises like `Pipe.send`, and `ssl.SSLError`, which is an `OSError`.
        """
        for part in parts:
            with memoryview(part) as view:
                at = 0
                while at < len(view):
                    try:
                        with self._lock:
                            at += self._connection.send(view[at : at + _RECORD])
                    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                        self._wait(want, None)

    def _wait(self, want: ssl.SSLError, patient: Patient | None) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN if isinstance(want, ssl.SSLWantReadError) else select.POLLOUT)
        while not poll.poll(self._stall * 1e3):
            if patient is None or not patient():
                raise stalled(self._stall)
