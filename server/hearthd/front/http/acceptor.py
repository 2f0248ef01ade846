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

from aiohttp import web

from hearthd.front.addresses import Address
from hearthd.front.auth.unix_identity import user_of
from hearthd.front.config.http import HttpSettings
from hearthd.front.connections.accept_loop import AcceptLoop
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.http.connection import Connection
from hearthd.front.http.refused import Refusals
from hearthd.front.tenancy.tenants import User

BACKLOG = 512
_SEND_BUFFER = 256 << 10
_RECEIVE_BUFFER = 64 << 10
"""Size, in bytes, of the kernel's buffers for one connection. By default, a connection that does not read could fill
several megabytes."""


class Acceptor:
    """Accepts connections for one HTTP server.

    `create_handler` creates the HTTP library's protocol object of a connection.
    """

    def __init__(
        self,
        settings: HttpSettings,
        limiter: ConnectionLimiter,
        refusals: Refusals,
        create_handler: Callable[[], web.RequestHandler],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._refusals = refusals
        self._create_handler = create_handler
        self._context = context
        self.settings = settings
        """The settings of the connections that are accepted from now on."""
        self._limiter = limiter
        self._connections: dict[web.RequestHandler, Connection] = {}
        self._accepting = AcceptLoop("http", self._on_accepted, self._on_shortage)

    async def open(self, address: Address) -> Address:
        """Listens on every address to which the host name resolves.

        Returns the address with the port in use. Raises `OSError`.
        """
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        port, unavailable = address.port, None
        listeners: list[socket.socket] = []
        for family, socket_type, protocol, _, sockaddr in dict.fromkeys(infos):
            try:
                listener = _open_listener(family, socket_type, protocol, (sockaddr[0], port, *sockaddr[2:]))
            except OSError as error:
                # Expected, for example, for "localhost" on a host without IPv6.
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    unavailable = error
                    continue
                for listener in listeners:
                    listener.close()
                raise
            listeners.append(listener)
            port = int(listener.getsockname()[1])
        if unavailable is not None and not listeners:
            raise unavailable
        for listener in listeners:
            self._accepting.listen(listener)
        return Address(address.host, port)

    def open_unix(self, listener: socket.socket) -> None:
        """Accepts connections also on a Unix socket, without TLS."""
        self._accepting.listen(listener)

    async def stop(self) -> None:
        """Accepts no further connections, and drops those that are in their TLS handshake."""
        await self._accepting.stop()

    def close(self) -> None:
        """Closes all connections immediately."""
        for connection in list(self._connections.values()):
            connection.displace()

    def connection_of(self, handler: web.RequestHandler) -> Connection | None:
        """Returns the connection that a protocol object of the HTTP library serves; None: it is closed."""
        return self._connections.get(handler)

    # ---- accepting ----

    def _on_accepted(self, accepted_socket: socket.socket, sockaddr: Any) -> None:
        if accepted_socket.family != socket.AF_UNIX:
            self._admit(accepted_socket, str(sockaddr[0]))
            return
        try:
            user = user_of(accepted_socket)
        except OSError:  # the peer has disconnected
            accepted_socket.close()
            return
        self._admit(accepted_socket, f"uid:{user.uid}", user)

    def _admit(self, accepted_socket: socket.socket, peer: str, user: User | None = None) -> None:
        slot = self._limiter.admit(peer, lambda: connection.displace())  # noqa: PLW0108 - bound below
        if slot is None:
            accepted_socket.close()
            return
        connection = Connection(self._create_handler(), self, peer, slot, accepted_socket, self.settings, user)
        self._connections[connection.handler] = connection
        self._accepting.start_task(self._start(connection, accepted_socket))

    async def _start(self, connection: Connection, accepted_socket: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        tls_options: dict[str, Any] = {}
        if self._context is not None and connection.user is None:
            tls_options = {
                "ssl": self._context,
                "ssl_handshake_timeout": self.settings.header_timeout,
                "ssl_shutdown_timeout": 1.0,
            }
        try:
            await loop.connect_accepted_socket(lambda: connection, accepted_socket, **tls_options)
        except BaseException as error:
            if isinstance(error, OSError) and not connection.closing:  # an error of TLS, including its timeout
                self.refuse("handshake", connection.peer)
            self.connection_closed(connection)
            accepted_socket.close()
            if not isinstance(error, OSError):
                raise

    def _on_shortage(self, error: OSError) -> None:
        """Closes an unauthenticated connection, so that there is a descriptor for the next one."""
        self._limiter.evict("descriptors")

    # ---- reports of connections ----

    def connection_closed(self, connection: Connection) -> None:
        """Releases the slot of a connection that is closed, and forgets the connection."""
        connection.slot.release()
        self._connections.pop(connection.handler, None)

    def refuse(self, reason: str, peer: str) -> None:
        """Counts a refusal by reason, and logs it at a limited rate."""
        self._refusals.add(reason, peer)


def _open_listener(family: int, socket_type: int, protocol: int, sockaddr: tuple[Any, ...]) -> socket.socket:
    """Returns a listening socket. Raises `OSError`."""
    listener = socket.socket(family, socket_type, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(sockaddr)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
