"""Exchange of memory segments between processes, by a number that only the holders know.

The process that keeps a segment listens on an abstract Unix socket whose name is a hash of the number (the nonce). A
process that knows the number connects and receives the descriptor. Both sides check that the other runs as the same
user. Device processes do this through their brokers, because a confined process cannot open a socket.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import select
import socket
import struct
import threading
from typing import Protocol

_TIMEOUT_S = 5.0
_CREDENTIALS = struct.Struct("=3i")


class HandOver(Protocol):
    """Passes segments between processes: `SegmentExchange`, or the client of a broker."""

    def keep(self, nonce: bytes, file: int) -> None:
        """Keeps the segment for other processes. Raises OSError."""
        ...

    def drop(self, nonce: bytes) -> None:
        """Ends `keep`. Has no effect if this process does not keep the segment."""
        ...

    def fetch(self, nonce: bytes) -> int:
        """Returns the file of a segment. Raises OSError if no process keeps the segment."""
        ...


class SegmentExchange:
    """Keeps segments for other processes, and fetches segments from them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: dict[bytes, tuple[socket.socket, int]] = {}
        self._by_listener: dict[int, bytes] = {}
        self._poll: select.epoll | None = None

    def keep(self, nonce: bytes, file: int) -> None:
        """Hands a copy of `file` to each process that knows the nonce, until `drop`.

        The caller keeps its descriptor. Raises OSError.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(_address(nonce))
            listener.listen(128)
            listener.setblocking(False)
            copy = os.dup(file)
        except BaseException:
            listener.close()
            raise
        with self._lock:
            self._segments[nonce] = listener, copy
            self._by_listener[listener.fileno()] = nonce
            if self._poll is None:
                self._poll = select.epoll()
                threading.Thread(target=self._serve, args=(self._poll,), name="segments kept", daemon=True).start()
            self._poll.register(listener.fileno(), select.EPOLLIN)

    def drop(self, nonce: bytes) -> None:
        """Ends the exchange of a segment."""
        with self._lock:
            listener, copy = self._segments.pop(nonce, (None, -1))
            if listener is not None:
                assert self._poll is not None
                self._poll.unregister(listener.fileno())
                del self._by_listener[listener.fileno()]
                listener.close()
                os.close(copy)

    @staticmethod
    def fetch(nonce: bytes) -> int:
        """Returns the descriptor that another process, or this one, keeps under the nonce.

        May block for seconds. Raises OSError if no process keeps it.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(_TIMEOUT_S)
            end.connect(_address(nonce))
            if not _is_trusted(end):
                raise PermissionError(errno.EACCES, "another user's process answers")
            _, files, _, _ = socket.recv_fds(end, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if not files:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            return files[0]

    def _serve(self, poll: select.epoll) -> None:
        while True:
            for descriptor, _ in poll.poll():
                with contextlib.suppress(OSError), self._lock:
                    nonce = self._by_listener.get(descriptor)
                    if nonce is not None:
                        self._answer(*self._segments[nonce])

    @staticmethod
    def _answer(listener: socket.socket, file: int) -> None:
        end, _ = listener.accept()
        with end:
            if _is_trusted(end):
                socket.send_fds(end, [b"!"], [file])


class _Current:
    """The object with which this process passes segments."""

    hand_over: HandOver = SegmentExchange()


def use(hand_over: HandOver) -> None:
    """Makes this process pass segments with `hand_over` from now on."""
    _Current.hand_over = hand_over


def hand_over() -> HandOver:
    """Returns the object with which this process passes segments: by default, a `SegmentExchange` in this process."""
    return _Current.hand_over


def _address(nonce: bytes) -> str:
    return f"\0hearth-exchange-{hashlib.sha256(nonce).hexdigest()[:48]}"


def _is_trusted(end: socket.socket) -> bool:
    """True if the socket's other end was opened by a process of this user or of the superuser."""
    raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return user in (0, os.geteuid())
