"""A call as frames, on a separate connection; see `hearth_proto.calls`.

A broken connection and a daemon that has ended look the same here, an `OSError` or the end of file, and end the call.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Iterator

from hearth import errors
from hearth.errors import HearthError
from hearth.transport.base import unanswered, unreached
from hearth_proto import calls, frames
from hearth_proto.calls import KEEPALIVE, Keepalive
from hearth_proto.frames import Frame, FrameError, FrameReader, Kind

_READ_BYTES = 1 << 20
_BUFFER = 2 << 20
"""Requested size, in bytes, of the socket's send buffer: enough for one message of a transfer and the next."""
_SMALL = 64 << 10
_CONNECT_RETRY_S = 0.002
_FLAGS = socket.MSG_NOSIGNAL
_open: weakref.WeakSet[FramedExchange] = weakref.WeakSet()


class FramedExchange:
    """Framed call with one receiving thread.

    Sends hold a lock, because the receiving thread also sends, to ask whether the peer is alive.
    """

    def __init__(self, target: str, path: str, timeout: float | None, keepalive: Keepalive = KEEPALIVE) -> None:
        """Connects to `path`; `timeout` in seconds applies to the whole call.

        Raises `OSError`, or `ValueError` for an invalid path.
        """
        self._target = target
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._keepalive = keepalive
        self._sending = threading.Lock()
        self._frames = FrameReader(calls.MAX_MESSAGE)
        self._received: list[Frame] = []
        self._socket = _connect(path, self._deadline)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        _open.add(self)

    # ---- output ----

    def start(self, method: str, metadata: Iterable[tuple[str, str]], message: bytes, *, more: bool = False) -> None:
        """Sends the method, its metadata and the first message.

        Args:
            method: Full name of the method, as in gRPC.
            metadata: Names and values that identify the caller.
            message: First request, serialized.
            more: True if other messages follow.

        Raises:
            ArgumentError: The metadata cannot be sent.
        """
        try:
            head = calls.pack_head(method, metadata)
        except FrameError as error:
            raise errors.ArgumentError(f"{error}.", fix="use shorter values without NUL characters.") from None
        end = b"" if more else frames.encode(Kind.END)
        # Sent in one piece, so that the daemon wakes once. If the daemon has hung up, the receiving thread finds the
        # reason.
        with contextlib.suppress(OSError), self._sending:
            self._socket.sendall(frames.encode(Kind.METHOD, head) + frames.encode(Kind.MESSAGE, message) + end, _FLAGS)

    def send(self, requests: Iterable[bytes]) -> None:
        """Sends the remaining messages and the end. Stops if the call has ended, which the receiving thread notices.

        Args:
            requests: Serialized messages.
        """
        with contextlib.suppress(OSError):
            for request in requests:
                with self._sending:
                    if len(request) <= _SMALL:
                        self._socket.sendall(frames.encode(Kind.MESSAGE, request), _FLAGS)
                    else:
                        self._socket.sendall(frames.header(Kind.MESSAGE, len(request)), _FLAGS)
                        self._socket.sendall(request, _FLAGS)
            with self._sending:
                self._socket.sendall(frames.encode(Kind.END), _FLAGS)

    # ---- input ----

    def messages(self) -> Iterator[bytes]:
        """Yields the responses.

        Raises the `HearthError` with which the daemon ended the call, or one for a broken connection.
        """
        try:
            while True:
                received, self._received = self._received, []
                for frame in received:
                    if frame.kind == Kind.MESSAGE:
                        yield frame.payload
                    elif frame.kind == Kind.END:
                        if frame.payload:
                            raise refusal_of(frame.payload)
                        return
                    elif frame.kind == Kind.PING:
                        self._send_empty(Kind.PONG)
                    elif frame.kind != Kind.PONG:
                        raise FrameError(f"a frame of kind {frame.kind} arrived in a call")
                self._receive()
        except HearthError:
            raise  # some of them are OSErrors as well
        except (OSError, FrameError) as error:
            raise unreached(self._target, getattr(error, "strerror", None) or str(error)) from None
        finally:
            self.close()

    def _receive(self) -> None:
        """Waits for the next frames. Raises `OSError`, or `hearth.TimeoutError` at the deadline."""
        pinged = False
        while not self._received:
            wait = self._keepalive.answer if pinged else self._keepalive.ask
            if self._deadline is not None:
                wait = min(wait, max(0.0, self._deadline - time.monotonic()))
            if self._poll.poll(wait * 1e3):
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionError("the daemon closed the connection")
                pinged = False
                self._received = self._frames.feed(data)
            elif self._deadline is not None and time.monotonic() >= self._deadline:
                raise unanswered(self._target)
            elif pinged:
                raise ConnectionError("the daemon stopped responding")
            else:
                pinged = self._send_empty(Kind.PING)

    def _send_empty(self, kind: Kind) -> bool:
        """Sends an empty frame, and returns True.

        Returns False if the frame was not sent because another frame still waits for the daemon to read it. If the
        daemon has hung up, the receiver finds the reason: the daemon may have answered.
        """
        if not self._sending.acquire(timeout=self._keepalive.answer):
            return False
        try:
            with contextlib.suppress(OSError):
                self._socket.sendall(frames.encode(kind), _FLAGS)
        finally:
            self._sending.release()
        return True

    # ---- closing ----

    def cancel(self) -> None:
        """Ends the call, from any thread: the daemon abandons it, and threads that send or receive here are woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cancels the call, from the receiving thread. Closes the descriptor unless a thread is sending."""
        self.cancel()
        if self._sending.acquire(blocking=False):
            self._socket.close()
            self._sending.release()
        _open.discard(self)

    def release(self) -> None:
        """Closes the descriptor in the child process of a fork; the parent's call continues."""
        self._socket.close()


def _connect(path: str, deadline: float | None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        connection.setblocking(False)
        while True:
            try:
                connection.connect(path)
                break
            except BlockingIOError:  # more clients connect than the daemon has accepted so far
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError("the daemon accepted no connection in time") from None
                time.sleep(_CONNECT_RETRY_S)
        connection.setblocking(True)
    except BaseException:
        connection.close()
        raise
    return connection


def refusal_of(payload: bytes) -> HearthError:
    """Returns the error in the payload of a call's last frame. Raises `FrameError` if the payload is not a Status."""
    from google.protobuf.message import DecodeError

    from hearth_proto.v1 import status_pb2

    try:
        return errors.from_status(status_pb2.Status.FromString(payload))
    except DecodeError as error:
        raise FrameError(f"a call ended with an invalid status: {error}") from None


def send_in_thread(call: FramedExchange, requests: Iterator[bytes], name: str) -> None:
    """Sends the remaining messages in a separate thread.

    Args:
        call: Call that was started with `more`.
        requests: Serialized messages.
        name: Name of the thread.
    """
    threading.Thread(target=call.send, args=(requests,), name=name, daemon=True).start()


def _after_fork() -> None:
    for call in list(_open):
        call.release()


os.register_at_fork(after_in_child=_after_fork)
