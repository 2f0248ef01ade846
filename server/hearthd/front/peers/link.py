"""A connection between the fronts of two daemons that share a group.

Each side sends a message at least every `HEARTBEAT` seconds, and ends the link if it receives nothing for `SILENCE`
seconds. The unsent data is bounded: a peer that does not read is disconnected, so that it cannot block or fill a daemon
that serves others. If a peer sends more than can be processed without delaying other work, reading is slowed down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from hearthd.front.peers.frames import MAX_FRAME, MAX_HELLO, Body, PeerFrameError, PeerFrameReader, encode

log = structlog.get_logger("hearthd.peers")

HEARTBEAT = 2.0
SILENCE = 6.0
HANDSHAKE = 5.0
"""Maximum time, in seconds, from connection to welcome, including TLS."""
MAX_UNSENT = 4 << 20
"""Maximum number of bytes that may wait for a slow peer."""
MAX_EARLY = 4
"""Maximum number of messages that may arrive before `start`."""
SLICE = 0.1
"""Length of a time slice in seconds. If a peer sends too much within a slice, reading pauses until the next."""
MAX_MESSAGES = 2000
"""Maximum number of messages in a slice: more than ranks present, and a small part of the event loop's time."""
MAX_READ = 4 << 20
"""Maximum number of bytes in a slice."""
CLOSE_TIMEOUT = 1.0
"""Time, in seconds, for a peer to read the last message before a link is closed."""

ALIVE = encode({"t": "alive"})


class PeerLost(Exception):
    """Raised if the connection has ended. The text is the reason."""


class PeerLink(asyncio.Protocol):
    """This side's end of a link.

    Messages are kept until `start`, except for the first, which `first` returns: these are the messages of the
    handshake.
    """

    def __init__(
        self, *, heartbeat: float = HEARTBEAT, silence: float = SILENCE, max_messages: int = MAX_MESSAGES
    ) -> None:
        """`heartbeat` and `silence`: seconds; `max_messages`: those that are read in a slice."""
        loop = asyncio.get_running_loop()
        self.peer = ""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done once the connection is closed."""
        self.end_reason = ""
        """The reason for the end of the link. Empty: the link is open."""
        self.pauses = 0
        """Number of times that reading was paused because the peer sent too much."""
        self._loop = loop
        self._heartbeat, self._silence = heartbeat, silence
        self._max_messages = max_messages
        self._transport: asyncio.Transport | None = None
        self._reader = PeerFrameReader(MAX_HELLO)
        self._early_messages: list[Body] = []
        self._first_arrived: asyncio.Future[None] | None = None
        self._on_message: Callable[[Body], None] | None = None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._last_received = 0.0
        self._next_heartbeat = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        """Timer that ends the pause in reading."""
        self._slice_start, self._messages_read, self._bytes_read = 0.0, 0, 0
        """Start time of the slice, and the messages and bytes read in it."""

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes the peer's address. Called by asyncio, over TLS after the handshake."""
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.peer = ":".join(map(str, name[:2])) if isinstance(name, tuple) else str(name or "")

    def data_received(self, data: bytes) -> None:
        """Passes on complete messages. Cuts the link after a message that cannot be decoded. Called by asyncio."""
        if self.end_reason:
            return
        self._last_received = self._loop.time()
        try:
            bodies = self._reader.feed(data)
        except PeerFrameError as error:
            self.abort(f"it sent a message that cannot be decoded: {error}")
            return
        for body in bodies:
            self._handle(body)
            if self.end_reason:
                return
        self._limit_rate(len(bodies), len(data))

    def _limit_rate(self, messages: int, size: int) -> None:
        """Counts what was read, and pauses reading if it was too much.

        The data of the peer then waits in the peer's own buffers.
        """
        if self._last_received - self._slice_start >= SLICE:
            self._slice_start, self._messages_read, self._bytes_read = self._last_received, 0, 0
        self._messages_read += messages
        self._bytes_read += size
        if self._transport is not None and (self._messages_read > self._max_messages or self._bytes_read > MAX_READ):
            self._transport.pause_reading()
            self._resume_timer = self._loop.call_at(self._slice_start + SLICE, self._resume_reading)

    def _resume_reading(self) -> None:
        self.pauses += 1
        if self._transport is not None and not self.end_reason:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Returns False, so that asyncio closes the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Completes `closed`, and reports the end unless the link was closed here before. Called by asyncio."""
        for timer in (self._abort_timer, self._resume_timer):
            if timer is not None:
                timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._end(f"the connection broke: {exc}" if exc is not None else "it closed the connection")

    # ---- handshake ----

    async def receive_first(self) -> Body:
        """Returns the first message. Raises `PeerLost`."""
        if not self._early_messages and not self.end_reason:
            self._first_arrived = self._loop.create_future()
            await self._first_arrived
        if not self._early_messages:
            raise PeerLost(self.end_reason)
        return self._early_messages.pop(0)

    def certificate(self) -> bytes:
        """The certificate of the peer in DER. Empty without TLS."""
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        return certificate or b""

    def start(self, on_message: Callable[[Body], None], on_lost: Callable[[str], None]) -> None:
        """Starts the link after the peer was authenticated.

        From now on messages are passed on, and the peer must send a message at least every `SILENCE` seconds.
        """
        self._on_message, self._on_lost = on_message, on_lost
        self._reader.max_bytes = MAX_FRAME
        self._last_received = self._loop.time()
        early, self._early_messages = self._early_messages, []
        if self.end_reason:
            self._loop.call_soon(on_lost, self.end_reason)
            return
        self._next_heartbeat = self._loop.time() + self._heartbeat
        self._timer = self._loop.call_at(self._next_heartbeat, self._on_heartbeat)
        for body in early:
            self._handle(body)

    # ---- messages ----

    def send(self, body: Mapping[str, Any]) -> None:
        """Sends a message.

        Does nothing if the link has ended. Raises `PeerFrameError` if the message does not fit into a frame.
        """
        if not self.end_reason:
            self._write(encode(body))

    def _write(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or self.end_reason:
            return
        if transport.get_write_buffer_size() + len(frame) > MAX_UNSENT:
            self.abort_soon(f"it has stopped reading: {transport.get_write_buffer_size()} bytes are waiting to be sent")
            return
        transport.write(frame)

    def _handle(self, body: Body) -> None:
        if body.get("t") == "alive":
            return
        if self._on_message is None:
            self._early_messages.append(body)
            if len(self._early_messages) > MAX_EARLY:
                self.abort("it did not wait for an answer")
            elif self._first_arrived is not None and not self._first_arrived.done():
                self._first_arrived.set_result(None)
            return
        try:
            self._on_message(body)
        except (KeyError, TypeError, ValueError) as error:
            self.abort(f"it sent an invalid message: {error!r}")

    def _on_heartbeat(self) -> None:
        now = self._loop.time()
        own_delay = (
            now - self._next_heartbeat
        )  # delay of this daemon itself, during which it has not read the peer's messages
        if now - self._last_received - own_delay > self._silence:
            self.abort(f"no message arrived from it for {self._silence:g} s")
            return
        self._write(ALIVE)
        if not self.end_reason:
            self._next_heartbeat = now + self._heartbeat
            self._timer = self._loop.call_at(self._next_heartbeat, self._on_heartbeat)

    # ---- end ----

    def abort(self, reason: str) -> None:
        """Aborts the link immediately."""
        if not self.end_reason:
            log.warning("peer_cut", peer=self.peer, why=reason)
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def abort_soon(self, reason: str) -> None:
        """Aborts the link after the caller has finished.

        The caller may be sending to several links, and the handling of one loss must not run in between.
        """
        self._loop.call_soon(self.abort, reason)

    def close(self, last: Mapping[str, Any] | None = None) -> None:
        """Closes the link without reporting it as lost.

        After a `last` message it waits for the peer to close the connection, because unread data of the peer would
        otherwise reset the connection before the message arrives.
        """
        self._on_lost = lambda reason: None
        transport, has_last_message = self._transport, last is not None and not self.end_reason
        if last is not None:
            self.send(last)
        self._end("it was closed by this daemon")
        if transport is None or self.closed.done():
            return
        if not has_last_message:
            transport.close()
        self._abort_timer = self._loop.call_later(CLOSE_TIMEOUT, transport.abort)

    def _end(self, reason: str) -> None:
        if self.end_reason:
            return
        self.end_reason = reason
        if self._timer is not None:
            self._timer.cancel()
        if self._first_arrived is not None and not self._first_arrived.done():
            self._first_arrived.set_result(None)
        on_lost, self._on_lost = self._on_lost, lambda reason: None
        on_lost(reason)
