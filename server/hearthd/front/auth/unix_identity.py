"""Identity of peers on the Unix socket.

gRPC does not report the process at the other end of a connection, but the kernel does. On a second socket,
`hearth-identity.sock` in the directory of `hearth.sock`, the daemon sends a ticket to each client that connects: one
line of text that identifies the user and groups that the kernel reports (SO_PEERCRED, SO_PEERGROUPS). The client shows
the ticket in the metadata of one call (`hearth-ticket`), which redeems it. A ticket is valid for some seconds. The
daemon reads nothing from the client.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable

import structlog

from hearthd.front.connections.limiter import ConnectionLimiter, ConnectionSlot
from hearthd.front.connections.peers import credentials_of
from hearthd.front.sockets import MAX_PATH, ListenError, UnixSocket
from hearthd.front.tenancy.tenants import User, token_key

log = structlog.get_logger("hearthd.identity")

_SO_PEERGROUPS = 59  # asm-generic/socket.h; Python has no name for it
_GROUPS_BYTES = 1024  # the maximum of Python's getsockopt: 256 groups
_SEND_TIMEOUT_S = 2.0
"""Time limit, in seconds, for sending a ticket."""
_MAX_TICKETS = 256
"""Maximum number of tickets of one user that are not redeemed. A further ticket replaces the oldest, so that many
tickets of one user do not affect other users."""


class IdentityTickets:
    """Issued tickets, by user and hash, oldest first. Pure: the clock is passed in."""

    def __init__(self, lifetime: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lifetime = lifetime
        """Time, in seconds, for which a ticket is valid."""
        self._clock = clock
        self._users: dict[int, dict[bytes, tuple[float, User]]] = {}

    def issue(self, user: User) -> str:
        """Returns a new ticket for a user, and forgets expired tickets."""
        self._forget_expired()
        ticket = secrets.token_urlsafe(24)
        tickets = self._users.setdefault(user.uid, {})
        if len(tickets) >= _MAX_TICKETS:
            del tickets[next(iter(tickets))]
        tickets[token_key(ticket)] = (self._clock() + self.lifetime, user)
        return ticket

    def redeem(self, ticket: str) -> User | None:
        """Redeems a ticket, once, and returns its user; None if the ticket is unknown, was used or has expired."""
        key = token_key(ticket)
        for tickets in self._users.values():
            issued = tickets.pop(key, None)
            if issued is not None:
                expires, user = issued
                return user if expires > self._clock() else None
        return None

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def _forget_expired(self) -> None:
        now = self._clock()
        for uid, tickets in list(self._users.items()):
            for key, (expires, _) in list(tickets.items()):
                if expires > now:
                    break
                del tickets[key]
            if not tickets:
                del self._users[uid]


class IdentitySocket:
    """The identity socket. Belongs to the event loop."""

    def __init__(self, path: str, tickets: IdentityTickets, limiter: ConnectionLimiter) -> None:
        self._socket = UnixSocket(path, public=True)  # every user may ask for a ticket
        self._tickets = tickets
        self._limiter = limiter
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Starts to listen. Raises `ListenError`."""
        path = str(self._socket.path)
        if len(os.fsencode(path)) > MAX_PATH:
            text = f"listen.unix: {path} is too long: a Unix socket's path has at most {MAX_PATH} bytes"
            raise ListenError(text, permanent=True)
        self._socket.claim()
        try:
            with self._socket.umask():
                self._server = await asyncio.get_running_loop().create_unix_server(
                    lambda: _TicketSender(self._tickets, self._limiter), path, backlog=128
                )
        except OSError as error:
            self._socket.release()
            raise ListenError(f"listen.unix: {path} cannot be listened on: {error.strerror or error}") from None

    async def stop(self) -> None:
        """Stops listening, and removes the socket. Tickets that were issued before remain valid."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket.release()


class _TicketSender(asyncio.Protocol):
    """Sends a ticket and closes the connection."""

    def __init__(self, tickets: IdentityTickets, limiter: ConnectionLimiter) -> None:
        self._tickets = tickets
        self._limiter = limiter
        self._slot: ConnectionSlot | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        try:
            user = user_of(transport.get_extra_info("socket"))
        except OSError as error:
            log.warning("no_peer_credentials", why=error.strerror or str(error))
            transport.close()
            return
        self._slot = self._limiter.admit(f"uid:{user.uid}", transport.abort)  # type: ignore[attr-defined]
        if self._slot is None:
            transport.close()
            return
        self._slot.expect(_SEND_TIMEOUT_S)
        transport.write(f"{self._tickets.issue(user)}\n".encode())
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slot is not None:
            self._slot.release()


def user_of(connection: socket.socket) -> User:
    """Returns the user at the other end of a Unix socket, as of the time of connecting. Raises `OSError`."""
    pid, uid, gid = credentials_of(connection)
    groups: tuple[int, ...] = ()
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        groups = struct.unpack(f"{len(packed) // 4}I", packed)
    except OSError as error:
        log.warning(
            "too_many_groups", uid=uid, why=error.strerror or str(error), action="only its primary group is used"
        )
    return User(uid, frozenset((gid, *groups)), pid)
