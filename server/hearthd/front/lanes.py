"""Where clients on this host ask for lanes: a Unix socket beside gRPC's, and the tickets that they show there.

Who connects sends one frame, TICKET. Its connection is then the device process's; the front reads not a byte beyond,
and keeps nothing of it. Whoever shows something else, or nothing in time, is hung up on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Protocol

import structlog

from hearth_proto.frames import HEADER, Kind
from hearth_proto.v1 import device_pb2
from hearthd.front.lane_tickets import LIFETIME, TICKET_BYTES, Attachment, Tickets
from hearthd.front.listen import UnixSocket

log = structlog.get_logger("hearthd.lanes")

_MOST_WAITING = 256
_TICKET_WAIT = 2.0
"""Seconds in which the ticket has to come."""
_REST_WAIT = 0.25
"""Seconds in which the Execute stream has to come to rest: its client waits, too, for a second."""
_ACCEPT_PAUSE = 1.0
"""Seconds after which it is tried again where the process has no descriptors left."""
MAX_PATH = 107


class LaneObserver(Protocol):
    """Whoever counts lanes."""

    def lane_opened(self) -> None: ...

    def lane_refused(self, reason: str) -> None: ...


class Unwanted(Exception):
    """A connection that becomes no lane; the text says why, as the metrics do."""


class Lanes:
    """Of one daemon."""

    def __init__(self, observer: LaneObserver) -> None:
        self._observer = observer
        self._tickets = Tickets()
        self._socket: UnixSocket | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()

    # ---- offers ----

    def offer(self, attachment: Attachment) -> device_pb2.LaneOffer | None:
        """What lets the attachment's client connect once; None where there are no lanes."""
        if self._socket is None:
            return None
        ticket = self._tickets.issue(attachment)
        return device_pb2.LaneOffer(path=str(self._socket.path), ticket=ticket, valid_ns=int(LIFETIME * 1e9))

    def withdraw(self, offer: device_pb2.LaneOffer | None) -> None:
        """The attachment is over."""
        if offer is not None:
            self._tickets.redeem(offer.ticket)

    # ---- the socket ----

    def open(self, path: str, *, public: bool) -> None:
        """Listens. `public`: other users of the host may connect. Raises `ListenError`."""
        if len(os.fsencode(path)) > MAX_PATH:
            log.warning("no_lanes", path=path, why=f"a Unix socket's path has at most {MAX_PATH} bytes")
            return
        place = UnixSocket(path, public=public, setting="lanes.path")
        place.claim()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        before = os.umask(0o111 if public else 0o177)
        try:
            listener.bind(path)
            listener.listen(128)
        except OSError as error:
            listener.close()
            place.release()
            raise place.unusable(error) from None
        finally:
            os.umask(before)
        self._socket, self._listener = place, listener
        self._accepting = asyncio.create_task(self._accept(listener), name="lanes")

    async def close(self) -> None:
        """No further lanes; those that are there are the device processes'."""
        tasks = [*self._waiting, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._socket is not None:
            self._socket.release()
        self._accepting = self._listener = self._socket = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("lane_accept", why=error.strerror or str(error))
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            if len(self._waiting) >= _MOST_WAITING:
                self._refuse(connection, "crowded")
                continue
            task = asyncio.create_task(self._serve(connection), name="lane-ticket")
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    # ---- one connection ----

    async def _serve(self, connection: socket.socket) -> None:
        """Makes a lane of a connection, or hangs up."""
        with contextlib.closing(connection):
            try:
                attachment = self._tickets.redeem(await self._ticket(connection))
                if attachment is None:
                    raise Unwanted("ticket")
                await self._hand_over(connection, attachment)
            except Unwanted as why:
                self._refuse(connection, str(why))
            else:
                self._observer.lane_opened()

    async def _ticket(self, connection: socket.socket) -> bytes:
        try:
            async with asyncio.timeout(_TICKET_WAIT):
                length, kind, _, _, _ = HEADER.unpack(await _read(connection, HEADER.size))
                if kind != Kind.TICKET or length != TICKET_BYTES:
                    raise Unwanted("malformed")
                return await _read(connection, length)
        except TimeoutError:
            raise Unwanted("silent") from None
        except OSError:
            raise Unwanted("closed") from None

    async def _hand_over(self, connection: socket.socket, attachment: Attachment) -> None:
        try:
            async with asyncio.timeout(_REST_WAIT):
                await attachment.hand_over(connection.fileno())
        except TimeoutError:
            raise Unwanted("busy") from None
        except OSError as error:
            log.info("no_lane", session=attachment.session.id, why=error.strerror or str(error))
            raise Unwanted("gone") from None

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        connection.close()
        log.debug("lane_refused", reason=reason)
        self._observer.lane_refused(reason)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Exactly so much: what follows is not the front's. Raises `Unwanted` at the end of the stream."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(connection, size - len(data))
        if not piece:
            raise Unwanted("closed")
        data += piece
    return data
