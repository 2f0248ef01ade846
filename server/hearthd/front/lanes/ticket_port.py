"""Ports of tickets: connections that are handed to device processes, whatever kind of socket they come by.

A client sends one frame, TICKET. Its connection is then the device process's; the front reads not a byte beyond, and
keeps nothing of it. A connection that shows something else, or nothing in time, is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Protocol

import structlog

from hearth_proto.frames import HEADER, Kind
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.connections.peers import peer_of
from hearthd.front.lanes.tickets import TICKET_BYTES, LaneTickets, TicketHolder, check_open

log = structlog.get_logger("hearthd.lanes")

_ACCEPT_PAUSE = 1.0
"""Seconds after which it is tried again where the process has no descriptors left."""


@dataclass(frozen=True)
class TicketPatience:
    """Seconds that a port waits for one connection."""

    ticket: float = 2.0
    """Time limit for the ticket to arrive."""
    rest: float = 0.25
    """Time limit for the Execute stream to become idle. Meanwhile its client waits, too, for up to a second."""


class PortObserver(Protocol):
    """Counts connections past the front."""

    def connection_passed_on(self, kind: str) -> None:
        """`kind`: what it has become, a `TicketHolder.kind`."""

    def lane_refused(self, reason: str) -> None: ...


class ConnectionRejected(Exception):
    """A connection that is not passed on; the text says why, as the metrics do."""


class TicketPort:
    """A listening socket, and the tickets that are good there and nowhere else."""

    ticket_bytes: tuple[int, ...] = (TICKET_BYTES,)
    """The lengths of tickets that are shown here."""

    def __init__(self, observer: PortObserver, limiter: ConnectionLimiter) -> None:
        """`limiter`: of connections that have shown no ticket; those with one are the device processes'."""
        self._observer = observer
        self._limiter = limiter
        self.tickets = LaneTickets()
        """The tickets that were issued here and have not been shown."""
        self.patience = TicketPatience()
        """Time limits of the connections that come from now on."""
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()

    def issue(self, attachment: TicketHolder, size: int = TICKET_BYTES) -> bytes:
        """A ticket that is good here, once and for `LIFETIME` seconds."""
        return self.tickets.issue(attachment, size)

    def _listen(self, listener: socket.socket) -> None:
        """Takes connections from now on; owns the socket."""
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener), name="lanes")

    async def close(self) -> None:
        """No further connections; those that are there are the device processes'."""
        tasks = [*self._waiting, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        self._accepting = self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("lane_accept", why=error.strerror or str(error))
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        task = asyncio.create_task(self._serve(connection), name="lane-ticket")

        def drop() -> None:
            self._refuse(connection, "crowded")
            task.cancel()

        slot = self._limiter.admit(peer_of(connection), drop)
        if slot is None:
            drop()
            return
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        task.add_done_callback(lambda _: slot.release())

    # ---- one connection ----

    async def _serve(self, connection: socket.socket) -> None:
        """Passes a connection on, or hangs up."""
        with contextlib.closing(connection):
            try:
                attachment = self.tickets.redeem(await self._ticket(connection))
                if attachment is None:
                    raise ConnectionRejected("ticket")
                await self._hand_over(connection, attachment)
            except ConnectionRejected as why:
                self._refuse(connection, str(why))
            else:
                self._observer.connection_passed_on(attachment.kind)

    async def _ticket(self, connection: socket.socket) -> bytes:
        try:
            async with asyncio.timeout(self.patience.ticket):
                length, kind, _, _, _ = HEADER.unpack(await _read(connection, HEADER.size))
                if kind != Kind.TICKET or length not in self.ticket_bytes:
                    raise ConnectionRejected("malformed")
                return await _read(connection, length)
        except TimeoutError:
            raise ConnectionRejected("silent") from None
        except OSError:
            raise ConnectionRejected("closed") from None

    async def _hand_over(self, connection: socket.socket, attachment: TicketHolder) -> None:
        try:
            check_open(connection.fileno())
            async with asyncio.timeout(self.patience.rest):
                await attachment.hand_over(connection.fileno())
        except TimeoutError:
            raise ConnectionRejected("busy") from None
        except OSError as error:
            why = error.strerror or str(error)
            log.info("no_lane", kind=attachment.kind, session=attachment.session.id, why=why)
            raise ConnectionRejected("gone") from None

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        connection.close()
        log.debug("lane_refused", reason=reason)
        self._observer.lane_refused(reason)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Exactly so much: what follows is not the front's. Raises `ConnectionRejected` at the end of the stream."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(connection, size - len(data))
        if not piece:
            raise ConnectionRejected("closed")
        data += piece
    return data
