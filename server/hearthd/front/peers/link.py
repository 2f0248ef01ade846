"""A connection between the fronts of two daemons that have a group together.

Both ends say something every `BEAT` seconds and give the other up that says nothing for `SILENCE`. What is sent is
bounded: a peer that does not read is cut off, so that it never holds up or fills a daemon that others use. One that
sends more than can be processed beside other work is read more slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from hearthd.front.peers.frames import MAX_FRAME, MAX_HELLO, Body, PeerFrameError, PeerFrameReader, encode

log = structlog.get_logger("hearthd.peers")

BEAT = 2.0
SILENCE = 6.0
HANDSHAKE = 5.0
"""Seconds from connection to welcome, TLS included."""
MAX_UNSENT = 4 << 20
"""Bytes that may wait for a slow peer."""
MAX_EARLY = 4
"""Messages that may come before they are listened to."""
SLICE = 0.1
"""Seconds; a peer that sends too much in one is read again in the next."""
MAX_MESSAGES = 2000
"""Messages in a slice: more than ranks present, and a small part of the loop's time."""
MAX_READ = 4 << 20
"""Bytes in a slice."""
LAST_WORDS = 1.0
"""Seconds in which a peer has to take what was said before a link was closed."""

ALIVE = encode({"t": "alive"})


class PeerLost(Exception):
    """The connection is over; the text says why."""


class PeerLink(asyncio.Protocol):
    """End of a link on this side. Messages wait until `start`, but for the first, which `first` gives: the handshake is
    made of these."""

    def __init__(self, *, beat: float = BEAT, silence: float = SILENCE, max_messages: int = MAX_MESSAGES) -> None:
        """`beat` and `silence`: seconds; `max_messages`: those that are read in a slice."""
        loop = asyncio.get_running_loop()
        self.peer = ""
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done once the connection is closed."""
        self.over = ""
        """Why it has ended; empty while it has not."""
        self.pauses = 0
        """Pauses in reading that the peer was given because it said too much."""
        self._loop = loop
        self._beat, self._silence = beat, silence
        self._max_messages = max_messages
        self._transport: asyncio.Transport | None = None
        self._reader = PeerFrameReader(MAX_HELLO)
        self._early: list[Body] = []
        self._first: asyncio.Future[None] | None = None
        self._on_message: Callable[[Body], None] | None = None
        self._on_lost: Callable[[str], None] = lambda why: None
        self._heard = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._abort: asyncio.TimerHandle | None = None
        self._resume: asyncio.TimerHandle | None = None
        """Timer of the pause in reading."""
        self._slice, self._messages, self._read = 0.0, 0, 0
        """The time at which the slice began, and the messages and bytes read in it."""

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.peer = ":".join(map(str, name[:2])) if isinstance(name, tuple) else str(name or "")

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self._heard = self._loop.time()
        try:
            bodies = self._reader.feed(data)
        except PeerFrameError as error:
            self.cut(f"it sent what cannot be read: {error}")
            return
        for body in bodies:
            self._take(body)
            if self.over:
                return
        self._slow_down(len(bodies), len(data))

    def _slow_down(self, messages: int, size: int) -> None:
        """Counts what was read; a peer that floods waits in its own buffers."""
        if self._heard - self._slice >= SLICE:
            self._slice, self._messages, self._read = self._heard, 0, 0
        self._messages += messages
        self._read += size
        if self._transport is not None and (self._messages > self._max_messages or self._read > MAX_READ):
            self._transport.pause_reading()
            self._resume = self._loop.call_at(self._slice + SLICE, self._read_on)

    def _read_on(self) -> None:
        self.pauses += 1
        if self._transport is not None and not self.over:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._abort, self._resume):
            if timer is not None:
                timer.cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        self._end(f"the connection broke: {exc}" if exc is not None else "it closed the connection")

    # ---- the handshake ----

    async def first(self) -> Body:
        """The first message. Raises `PeerLost`."""
        if not self._early and not self.over:
            self._first = self._loop.create_future()
            await self._first
        if not self._early:
            raise PeerLost(self.over)
        return self._early.pop(0)

    def certificate(self) -> bytes:
        """The other end's certificate as DER; empty without TLS."""
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        return shown or b""

    def start(self, on_message: Callable[[Body], None], on_lost: Callable[[str], None]) -> None:
        """Starts the link, whose peer is authenticated: from here on it is read, and must not fall silent."""
        self._on_message, self._on_lost = on_message, on_lost
        self._reader.most = MAX_FRAME
        self._heard = self._loop.time()
        early, self._early = self._early, []
        if self.over:
            self._loop.call_soon(on_lost, self.over)
            return
        self._due = self._loop.time() + self._beat
        self._timer = self._loop.call_at(self._due, self._tick)
        for body in early:
            self._take(body)

    # ---- life ----

    def send(self, body: Mapping[str, Any]) -> None:
        """Says something; nothing where the link is over. Raises `PeerFrameError` for what does not fit a frame."""
        if not self.over:
            self._write(encode(body))

    def _write(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or self.over:
            return
        if transport.get_write_buffer_size() + len(frame) > MAX_UNSENT:
            self.cut_soon(f"it takes nothing any more: {transport.get_write_buffer_size()} bytes wait for it")
            return
        transport.write(frame)

    def _take(self, body: Body) -> None:
        if body.get("t") == "alive":
            return
        if self._on_message is None:
            self._early.append(body)
            if len(self._early) > MAX_EARLY:
                self.cut("it did not wait for an answer")
            elif self._first is not None and not self._first.done():
                self._first.set_result(None)
            return
        try:
            self._on_message(body)
        except (KeyError, TypeError, ValueError) as error:
            self.cut(f"it sent a message that means nothing: {error!r}")

    def _tick(self) -> None:
        now = self._loop.time()
        late = now - self._due  # this daemon's own: what the peer said meanwhile has not been read yet
        if now - self._heard - late > self._silence:
            self.cut(f"nothing was heard of it for {self._silence:g} s")
            return
        self._write(ALIVE)
        if not self.over:
            self._due = now + self._beat
            self._timer = self._loop.call_at(self._due, self._tick)

    # ---- the end ----

    def cut(self, why: str) -> None:
        """Gives the peer up at once."""
        if not self.over:
            log.warning("peer_cut", peer=self.peer, why=why)
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def cut_soon(self, why: str) -> None:
        """Cuts the link as `cut` does, after the caller has finished: it may be sending to several links, and the loss
        of one would come in between."""
        self._loop.call_soon(self.cut, why)

    def close(self, last: Mapping[str, Any] | None = None) -> None:
        """Closes the link without reporting it lost. After a last message it waits for the peer to close, because data
        that the peer has just sent would otherwise take that message away with it."""
        self._on_lost = lambda why: None
        transport, speaks = self._transport, last is not None and not self.over
        if last is not None:
            self.send(last)
        self._end("it was closed here")
        if transport is None or self.gone.done():
            return
        if not speaks:
            transport.close()
        self._abort = self._loop.call_later(LAST_WORDS, transport.abort)

    def _end(self, why: str) -> None:
        if self.over:
            return
        self.over = why
        if self._timer is not None:
            self._timer.cancel()
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        on_lost, self._on_lost = self._on_lost, lambda why: None
        on_lost(why)
