"""A guarded HTTP connection: an asyncio protocol in front of aiohttp's.

Covers the limits for unauthenticated clients: size and time of a request's head, one request at a time, no bodies, a
time limit for clients that do not read. aiohttp's protocol object receives only complete, checked heads. Does not cover
the caller's identity (`server`) and the number of connections (`acceptor`). Event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

from aiohttp import web

from hearthd.front.config.http import HttpSettings
from hearthd.front.connections.limiter import ConnectionSlot
from hearthd.front.http import head, refused
from hearthd.front.http.head import HeadError
from hearthd.front.tenancy.tenants import User

PIECE_BYTES = 64 << 10
"""Number of bytes of a response that are passed to the transport at a time."""
_LINGER_S = 1.0
"""Time, in seconds, for a refused client to read its response."""
_LINGER_BYTES = 256 << 10
"""Maximum number of bytes that are read and dropped in that time. Unread bytes would make the kernel drop the
response."""
_MAX_REQUEST_S = 900.0
"""Time limit, in seconds, of a request of any kind."""


class ConnectionOwner(Protocol):
    """The listener, as its connections use it."""

    def connection_closed(self, connection: Connection) -> None:
        """Notes that the connection is closed."""

    def refuse(self, reason: str, peer: str) -> None:
        """Counts and logs a refusal."""


class _State(enum.Enum):
    HEAD = enum.auto()
    """Waiting for a request, or for the rest of its head."""
    REQUEST = enum.auto()
    """A request is under way."""
    CLOSING = enum.auto()


class Connection(asyncio.Protocol):
    """An HTTP connection. It belongs to the listener that accepted it, and is created before the TLS handshake."""

    def __init__(
        self,
        handler: web.RequestHandler,
        owner: ConnectionOwner,
        peer: str,
        slot: ConnectionSlot,
        accepted_socket: socket.socket,
        settings: HttpSettings,
        user: User | None = None,
    ) -> None:
        self.handler = handler
        self.peer = peer
        """The address of the client, for the log."""
        self.slot = slot
        """The connection's slot in the limiter. It counts as authenticated while a request of an accepted caller is
        under way. A reserved slot is served probes only."""
        self.user = user
        """The user of this host at the other end of a Unix socket. None: the client connected over TCP."""
        self._owner = owner
        self._settings = settings
        self._socket = accepted_socket
        self._transport: asyncio.Transport | None = None
        self._state = _State.HEAD
        self._received = bytearray()
        self._searched = 0
        self._dropped_bytes = 0
        self._close_after_response = False
        self._has_served = False
        self._paused = False
        self._flushed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the time limit of the first head. Called by asyncio after the TLS handshake."""
        # A cast, because uvloop's transports do not inherit from asyncio's.
        transport = self._transport = cast(asyncio.Transport, transport)
        # With these limits a write ends when the kernel has all of it, so at most one piece is buffered here.
        transport.set_write_buffer_limits(high=1, low=0)
        self.handler.connection_made(transport)
        self._set_timer(self._settings.header_timeout, self._on_timeout)

    def data_received(self, data: bytes) -> None:
        """Collects the next head, and drops data of a connection that is about to close. Called by asyncio."""
        if self._state is _State.CLOSING:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _LINGER_BYTES:
                self.displace()
            return
        if not self._received and self._state is _State.HEAD:
            self._set_timer(self._settings.header_timeout, self._on_timeout)
        self._received += data
        if self._state is _State.HEAD:
            self._process_head()
        else:
            self._limit_read_ahead()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends a wait in `piece` with `ConnectionResetError`, and notifies the owner. Called by asyncio."""
        self._state = _State.CLOSING
        if self._timer is not None:
            self._timer.cancel()
        self._received.clear()
        self.handler.connection_lost(exc)
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_exception(ConnectionResetError("the client has disconnected"))
        self._transport = None
        self._owner.connection_closed(self)

    def pause_writing(self) -> None:
        """Makes `piece` wait. Called by asyncio when the kernel does not accept a whole write."""
        self._paused = True
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        """Ends the wait of `piece`. Called by asyncio when the kernel has accepted everything."""
        self._paused = False
        self.handler.resume_writing()
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)

    # ---- the listener ----

    @property
    def closing(self) -> bool:
        """True if this side is about to close the connection."""
        return self._state is _State.CLOSING

    def displace(self) -> None:
        """Closes the connection immediately, even during its TLS handshake."""
        self._state = _State.CLOSING
        if self._transport is not None:
            self._transport.abort()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # ---- responses ----

    @contextlib.asynccontextmanager
    async def piece(self) -> AsyncIterator[None]:
        """Limits the time for the client to receive what is written in this context.

        If the kernel has not accepted all of it in time, closes the connection and raises `ConnectionResetError`.
        """
        try:
            async with asyncio.timeout(self._settings.write_timeout):
                yield
                while self._paused:
                    self._flushed = asyncio.get_running_loop().create_future()
                    await self._flushed
        except TimeoutError:
            self._owner.refuse("write_timeout", self.peer)
            self.displace()
            raise ConnectionResetError("the client does not read") from None

    def response_sent(self, *, last: bool) -> None:
        """Notes that the response to the request under way has been sent completely.

        With `last` the connection is closed.
        """
        if self._state is not _State.REQUEST:
            return
        self.slot.mark_unauthenticated()
        if last or self._close_after_response:
            self._close()
            return
        self._state, self._has_served = _State.HEAD, True
        self._set_timer(
            self._settings.header_timeout if self._received else self._settings.idle_timeout, self._on_timeout
        )
        self._searched = 0
        if self._received:
            self._process_head()
        if self._state is _State.HEAD:
            self._resume_reading()

    # ---- internals ----

    def _process_head(self) -> None:
        """Passes the next head on if it is complete and valid."""
        while self._received.startswith(b"\r\n"):
            del self._received[:2]
        try:
            end = self._received.find(head.END, max(0, self._searched - len(head.END)))
            self._searched = len(self._received)
            if end < 0:
                head.check_beginning(self._received)
                return
            parsed = head.parse(bytes(self._received[: end + len(head.END)]))
        except HeadError as error:
            self._refuse(error)
            return
        if self.slot.reserved and not parsed.probe:
            fix = "Try again in a moment; `http.max_connections` and `http.max_connections_per_address` set the limits."
            self._refuse(HeadError(503, "connections", "There are too many connections.", fix))
            return
        del self._received[: end + len(head.END)]
        self._state = _State.REQUEST
        self._set_timer(_MAX_REQUEST_S, self.displace)
        self.handler.data_received(parsed.data)
        self._limit_read_ahead()

    def _limit_read_ahead(self) -> None:
        """Stops reading while a request is under way.

        Drops data that is already here if there is more of it than one further request.
        """
        if self._received and self._transport is not None and self._state is _State.REQUEST:
            with contextlib.suppress(RuntimeError):  # the transport is closing
                self._transport.pause_reading()
            if len(self._received) > head.MAX_HEAD:
                self._received.clear()
                self._close_after_response = True

    def _resume_reading(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # the transport is closing
                self._transport.resume_reading()

    def _refuse(self, error: HeadError) -> None:
        self._owner.refuse(error.reason, self.peer)
        if self._transport is not None:
            headers = {"Allow": "GET, HEAD"} if error.status == 405 else {}
            headers |= {"Retry-After": "1"} if error.status == 503 else {}
            self._transport.write(refused.answer(error.status, error.error, error.fix, headers))
        self._close()

    def _close(self) -> None:
        """Closes the sending side, and then waits briefly for the client to read and to disconnect."""
        self._state = _State.CLOSING
        self._received.clear()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._set_timer(_LINGER_S, self.displace)
        if transport.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):
                transport.write_eof()
            self._resume_reading()
        else:
            transport.close()

    def _on_timeout(self) -> None:
        if self._received:
            self._refuse(HeadError(408, "head_timeout", "The headers took too long.", "Send them without delay."))
            return
        if not self._has_served:
            self._owner.refuse("head_timeout", self.peer)
        self.displace()

    def _set_timer(self, seconds: float, action: Callable[[], None]) -> None:
        """Sets the connection's timer, replacing the earlier one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, action)


async def deliver(request: web.Request, response: web.StreamResponse, connection: Connection) -> web.StreamResponse:
    """Sends the rest of a response, and returns the response that aiohttp treats as sent.

    Afterwards the next request is read.
    """
    try:
        if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > PIECE_BYTES:
            response = await _send_in_pieces(request, response, response.body, connection)
        async with connection.piece():
            await response.prepare(request)
            await response.write_eof()
    except ConnectionError:  # closed, here or by the client
        response.force_close()
        return response
    connection.response_sent(last=not response.keep_alive)
    return response


async def _send_in_pieces(
    request: web.Request, complete: web.Response, body: bytes, connection: Connection
) -> web.StreamResponse:
    response = web.StreamResponse(status=complete.status, reason=complete.reason, headers=complete.headers)
    response.content_length = len(body)
    await response.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(body), PIECE_BYTES):
            async with connection.piece():
                await response.write(body[start : start + PIECE_BYTES])
    return response
