"""Ticket ports: listeners whose connections are handed to device processes, whatever the kind of socket.

A client sends one frame, TICKET. Its connection then belongs to the device process: the front reads no byte beyond the
ticket, and keeps nothing of the connection. A connection that sends something else, or nothing in time, is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from hearth_proto.frames import HEADER, Kind
from hearthd.front.connections.accept_loop import AcceptLoop
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.connections.peers import peer_of
from hearthd.front.lanes.tickets import TICKET_BYTES, LaneTickets, TicketHolder, check_open

log = structlog.get_logger("hearthd.lanes")

_ACCEPT_PAUSE = 1.0
"""Delay, in seconds, before accepting is tried again after the process ran out of descriptors."""


@dataclass(frozen=True)
class TicketTimeouts:
    """Seconds that a port waits for one connection."""

    ticket: float = 2.0
    """Time limit for the ticket to arrive."""
    idle: float = 0.25
    """Time limit for the Execute stream to become idle. Meanwhile its client waits, too, for up to a second."""


class PortObserver(Protocol):
    """Counts connections that are handed to device processes."""

    def connection_passed_on(self, kind: str) -> None:
        """Counts a connection that was handed over. `kind`: its kind, from `TicketHolder.kind`."""

    def lane_refused(self, reason: str) -> None:
        """Counts a connection that was closed instead of handed over.

        `reason`: crowded, silent, malformed, closed, ticket, busy or gone.
        """
        ...


class ConnectionRejected(Exception):
    """Raised for a connection that is not handed over. The text is the reason, as used in metrics."""


class TicketPort:
    """A listening socket, and the tickets that are valid only there."""

    ticket_bytes: tuple[int, ...] = (TICKET_BYTES,)
    """The accepted lengths of tickets."""

    def __init__(self, observer: PortObserver, limiter: ConnectionLimiter) -> None:
        """Creates the port.

        `limiter` limits connections that have not shown a ticket; those that have belong to the device processes.
        """
        self._observer = observer
        self._limiter = limiter
        self.tickets = LaneTickets()
        """The tickets that were issued here and have not been used."""
        self.timeouts = TicketTimeouts()
        """Time limits of the connections that come from now on."""
        self._accepting = AcceptLoop("lanes", self._on_accepted, self._on_shortage, retry_s=_ACCEPT_PAUSE)

    def issue(self, holder: TicketHolder, size: int = TICKET_BYTES) -> bytes:
        """Returns a ticket that is valid here, once, for `LIFETIME` seconds."""
        return self.tickets.issue(holder, size)

    async def close(self) -> None:
        """Stops accepting connections. Those that were handed over belong to the device processes, and stay."""
        await self._accepting.stop()

    def _on_shortage(self, error: OSError) -> None:
        log.warning("lane_accept", why=error.strerror or str(error))

    def _on_accepted(self, connection: socket.socket, _: Any) -> None:
        task = self._accepting.start_task(self._serve(connection))

        def drop() -> None:
            self._refuse(connection, "crowded")
            task.cancel()

        slot = self._limiter.admit(peer_of(connection), drop)
        if slot is None:
            drop()
            return
        task.add_done_callback(lambda _: slot.release())

    # ---- one connection ----

    async def _serve(self, connection: socket.socket) -> None:
        """Hands a connection over, or closes it."""
        with contextlib.closing(connection):
            try:
                holder = self.tickets.redeem(await self._read_ticket(connection))
                if holder is None:
                    raise ConnectionRejected("ticket")
                await self._hand_over(connection, holder)
            except ConnectionRejected as rejection:
                self._refuse(connection, str(rejection))
            else:
                self._observer.connection_passed_on(holder.kind)

    async def _read_ticket(self, connection: socket.socket) -> bytes:
        try:
            async with asyncio.timeout(self.timeouts.ticket):
                length, kind, _, _, _ = HEADER.unpack(await _read(connection, HEADER.size))
                if kind != Kind.TICKET or length not in self.ticket_bytes:
                    raise ConnectionRejected("malformed")
                return await _read(connection, length)
        except TimeoutError:
            raise ConnectionRejected("silent") from None
        except OSError:
            raise ConnectionRejected("closed") from None

    async def _hand_over(self, connection: socket.socket, holder: TicketHolder) -> None:
        try:
            check_open(connection.fileno())
            async with asyncio.timeout(self.timeouts.idle):
                await holder.hand_over(connection.fileno())
        except TimeoutError:
            raise ConnectionRejected("busy") from None
        except OSError as error:
            reason = error.strerror or str(error)
            log.info("no_lane", kind=holder.kind, session=holder.session.id, why=reason)
            raise ConnectionRejected("gone") from None

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        connection.close()
        log.debug("lane_refused", reason=reason)
        self._observer.lane_refused(reason)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes, because the bytes that follow belong to the device process.

    Raises `ConnectionRejected` at the end of the stream.
    """
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(connection, size - len(data))
        if not chunk:
            raise ConnectionRejected("closed")
        data += chunk
    return data
