"""Listening sockets of HTTP, and admission of the connections to them.

Connections are counted from their first byte on, before TLS (`hearthd.front.connections.accept_loop`). Does not cover
the responses (`server`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

from hearthd.front.addresses import Address
from hearthd.front.auth.unix_identity import user_of
from hearthd.front.config.http import HttpSettings
from hearthd.front.connections.accept_loop import AcceptLoop
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.http.connection import Connection, Handler, HttpTimeouts
from hearthd.front.http.refused import Refusals
from hearthd.front.tenancy.tenants import User

BACKLOG = 512
_SEND_BUFFER = 256 << 10
_RECEIVE_BUFFER = 64 << 10
"""Size, in bytes, of the kernel's buffers for one connection. By default, a connection that does not read could fill
several megabytes."""


class Acceptor:
    """Accepts connections for one HTTP server. `make` creates the HTTP library's protocol object for a connection."""

    def __init__(
        self,
        settings: HttpSettings,
        limiter: ConnectionLimiter,
        refusals: Refusals,
        make: Callable[[], Handler],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._refusals = refusals
        self._make = make
        self._context = context
        self.limits = HttpTimeouts(settings.header_timeout, settings.idle_timeout, settings.write_timeout)
        """Timeouts of the connections that are accepted from now on."""
        self._limiter = limiter
        self._of: dict[Handler, Connection] = {}
        self._accepting = AcceptLoop("http", self._on_accepted, self._on_shortage)

    async def open(self, address: Address) -> Address:
        """Listens on every address to which the host name resolves.

        Returns the address with the port in use. Raises `OSError`.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        port, absent = address.port, None
        opened: list[socket.socket] = []
        for family, kind, protocol, _, where in dict.fromkeys(found):
            try:
                listening = _listening(family, kind, protocol, (where[0], port, *where[2:]))
            except OSError as error:
                # Expected, for example, for "localhost" on a host without IPv6.
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    absent = error
                    continue
                for listening in opened:
                    listening.close()
                raise
            opened.append(listening)
            port = int(listening.getsockname()[1])
        if absent is not None and not opened:
            raise absent
        for listening in opened:
            self._accepting.listen(listening)
        return Address(address.host, port)

    def open_unix(self, listening: socket.socket) -> None:
        """Accepts connections also on a Unix socket, without TLS."""
        self._accepting.listen(listening)

    async def stop(self) -> None:
        """Accepts no further connections, and drops those that are in their TLS handshake."""
        await self._accepting.stop()

    def close(self) -> None:
        """Closes all connections at once."""
        for connection in list(self._of.values()):
            connection.displace()

    def connection_of(self, handler: Handler) -> Connection | None:
        """Returns the connection that a protocol object of the HTTP library serves; None: it is closed."""
        return self._of.get(handler)

    # ---- accepting ----

    def _on_accepted(self, accepted: socket.socket, where: Any) -> None:
        if accepted.family != socket.AF_UNIX:
            self._admit(accepted, str(where[0]))
            return
        try:
            user = user_of(accepted)
        except OSError:  # the peer has disconnected
            accepted.close()
            return
        self._admit(accepted, f"uid:{user.uid}", user)

    def _admit(self, accepted: socket.socket, peer: str, user: User | None = None) -> None:
        slot = self._limiter.admit(peer, lambda: connection.displace())  # noqa: PLW0108 - bound below
        if slot is None:
            accepted.close()
            return
        connection = Connection(self._make(), self, peer, slot, accepted, self.limits, user)
        self._of[connection.handler] = connection
        self._accepting.start_task(self._start(connection, accepted))

    async def _start(self, connection: Connection, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {}
        if self._context is not None and connection.user is None:
            secured = {"ssl": self._context, "ssl_handshake_timeout": self.limits.header, "ssl_shutdown_timeout": 1.0}
        try:
            await loop.connect_accepted_socket(lambda: connection, accepted, **secured)
        except BaseException as error:
            if isinstance(error, OSError) and not connection.closing:  # an error of TLS, including its timeout
                self.refuse("handshake", connection.peer)
            self.connection_closed(connection)
            accepted.close()
            if not isinstance(error, OSError):
                raise

    def _on_shortage(self, error: OSError) -> None:
        """Closes an unauthenticated connection, so that there is a descriptor for the next one."""
        self._limiter.evict("descriptors")

    # ---- reports of connections ----

    def connection_closed(self, connection: Connection) -> None:
        """Releases the slot of a connection that is closed, and forgets the connection."""
        connection.slot.release()
        self._of.pop(connection.handler, None)

    def refuse(self, reason: str, peer: str) -> None:
        """Counts a refusal by reason, and logs it at a limited rate."""
        self._refusals.add(reason, peer)


def _listening(family: int, kind: int, protocol: int, where: tuple[Any, ...]) -> socket.socket:
    """Returns a listening socket. Raises `OSError`."""
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
