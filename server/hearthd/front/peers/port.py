"""The TCP port at which the daemons of a group reach the coordinator. It is opened for the first group."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearthd.front import sockets
from hearthd.front.addresses import Address, parse_address
from hearthd.front.connections.accept_loop import AcceptLoop
from hearthd.front.peers.frames import Body
from hearthd.front.peers.link import HANDSHAKE, PeerLink, PeerLost
from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.peers")

MAX_UNAUTHENTICATED = 64
"""Maximum number of unauthenticated connections; further connections are closed."""
MAX_UNAUTHENTICATED_OF_HOST = MAX_UNAUTHENTICATED // 2
"""Maximum number of unauthenticated connections from one host, so that no host can exclude all others."""
_LOG_S = 1.0
"""Minimum interval, in seconds, between log lines about connections that are not accepted."""

Admit = Callable[[Body, PeerLink], None]
"""Handles and answers the first message of a connection. Raises `ValueError` if the message is invalid."""


class PeerPort:
    """The listener, and the handshakes of its connections."""

    def __init__(
        self,
        address: str,
        advertised: tuple[str, ...],
        host: str,
        admit: Admit,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
        link_factory: Callable[[], PeerLink] = PeerLink,
        handshake_timeout: float = HANDSHAKE,
    ) -> None:
        """Creates the port.

        `address` is the value of `[collectives] listen`. `host` is this machine's name, which is advertised if the
        address is a wildcard.
        """
        self.addresses: tuple[str, ...] = ()
        """The addresses for tickets, once the port is open."""
        self.unauthenticated: Counter[str] = Counter()
        """Number of unauthenticated connections, by address."""
        self._address, self._advertised, self._host = address, advertised, host
        self._admit, self._context = admit, context
        self._link_factory, self._handshake_timeout = link_factory, handshake_timeout
        self._open = False
        self._opening = asyncio.Lock()
        self._closed = False
        self.on_refused: Callable[[str, str], None] = lambda host, reason: None
        """Called with the address and the reason of each connection that is not accepted or sends nothing in time."""
        self._log_throttle = LogThrottle(_LOG_S)
        self._accept_loop = AcceptLoop("peers", self._on_accepted, self._on_shortage)

    async def open(self) -> None:
        """Starts to listen, if the port is not open yet.

        Raises `UNSUPPORTED` if no address is configured, and `COMMUNICATOR_FAILED` if the address cannot be used.
        """
        if not self._address:
            raise Refusal(
                Reason.UNSUPPORTED,
                "This daemon takes no part in groups over several daemons: collectives.listen is empty.",
                fix='Set listen in [collectives], e.g. listen = "0.0.0.0:7424" with [tls], on every node of the group.',
                details={"setting": "collectives.listen"},
            )
        async with self._opening:
            if self._open or self._closed:
                return
            address = parse_address(self._address)
            try:
                listener = await _create_listener(address)
            except OSError as error:
                cause = str(sockets.listen_error(address, "listen", error)).removeprefix("listen.listen: ")
                raise Refusal(
                    Reason.COMMUNICATOR_FAILED,
                    f"The port for groups over several daemons cannot be opened: collectives.listen: {cause}.",
                    fix="Set collectives.listen to an address of this host with a port that is free.",
                    details={"setting": "collectives.listen", "requested": self._address},
                ) from None
            self._open = True
            self._accept_loop.listen(listener)
            port = int(listener.getsockname()[1])
            default = Address(self._host if address.wildcard else address.host, port)
            self.addresses = self._advertised or (str(default),)
            log.info("listening", peers=str(Address(address.host, port)), advertised=self.addresses)

    async def close(self) -> None:
        """Admits no more peers. Peers that were admitted keep their links."""
        self._closed = True
        await self._accept_loop.stop()

    # ---- connections ----

    def _on_accepted(self, connection: socket.socket, peer_address: Any) -> None:
        """Counts an unauthenticated connection and starts its handshake, or closes it if there are too many."""
        host = str(peer_address[0])
        total, of_host = self.unauthenticated.total(), self.unauthenticated[host]
        if total >= MAX_UNAUTHENTICATED or of_host >= MAX_UNAUTHENTICATED_OF_HOST:
            connection.close()
            self.on_refused(host, "strangers" if total >= MAX_UNAUTHENTICATED else "address")
            counts = f"{total} others, {of_host} of them from {host},"
            self._log_not_accepted("strangers", f"{counts} have not identified themselves yet")
            return
        self.unauthenticated[host] += 1
        self._accept_loop.start_task(self._run_handshake(connection, host))

    def _on_shortage(self, error: OSError) -> None:
        self._log_not_accepted("descriptors", error.strerror or str(error))

    def _log_not_accepted(self, kind: str, cause: str) -> None:
        times = self._log_throttle.times(kind, asyncio.get_running_loop().time())
        if times:
            log.warning("peer_not_accepted", why=cause, times=times)

    async def _run_handshake(self, connection: socket.socket, host: str) -> None:
        """Runs the handshake: TLS if it is configured, then authentication of the peer."""
        link = self._link_factory()
        try:
            async with asyncio.timeout(self._handshake_timeout):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: link, connection, ssl=self._context())
                body = await link.receive_first()
            self._admit(body, link)
            # A refused peer counts until its connection has ended; otherwise such connections would accumulate.
            if link.end_reason:
                await asyncio.wait([link.closed])
        except TimeoutError:
            self.on_refused(host, "silent")
            link.abort(f"it did not identify itself within {self._handshake_timeout:g} s")
        except PeerLost as error:
            log.info("peer_gone", peer=link.peer, why=str(error))
        except ValueError as error:
            link.abort(str(error))
        except OSError as error:
            link.abort(f"TLS could not be set up: {error}")
        except asyncio.CancelledError:
            link.abort("the daemon is stopping")
            raise
        finally:
            self.unauthenticated[host] -= 1
            self.unauthenticated += Counter()  # removes the addresses whose count is 0
            if not link.peer:
                connection.close()


async def _create_listener(address: Address) -> socket.socket:
    """Creates the listening socket. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    results = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, socket_address = results[0]
    listener = socket.create_server(socket_address[:2], family=family, backlog=128)
    listener.setblocking(False)
    return listener


async def connect(
    address: Address, pin: bytes, time_limit: float, link_factory: Callable[[], PeerLink] = PeerLink
) -> PeerLink:
    """Connects to a coordinator.

    `address` must be numeric: names are not looked up here; see `PeerTargets.find`. `pin` is the SHA-256 of the
    coordinator's certificate; empty: no TLS. Raises `PeerLost` with the reason.
    """
    context: Any = None
    if pin:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # the certificate is compared with the pin; its issuer and name do not matter
        context.verify_mode = ssl.CERT_NONE
    link = link_factory()
    try:
        async with asyncio.timeout(time_limit):
            await asyncio.get_running_loop().create_connection(
                lambda: link, address.host, address.port, ssl=context, flags=socket.AI_NUMERICHOST
            )
    except TimeoutError:
        link.abort("no answer arrived")
        raise PeerLost(f"no answer arrived within {time_limit:.3g} s") from None
    except (OSError, UnicodeError) as error:
        link.abort("it could not be reached")
        raise PeerLost(_describe_error(error, bool(pin))) from None
    except BaseException:
        link.abort("the request that needed it has ended")
        raise
    if pin and hashlib.sha256(link.certificate()).digest() != pin:
        link.abort("its certificate is not the one that the ticket names")
        raise PeerLost("its certificate is not the one that the ticket names")
    return link


def _describe_error(error: Exception, tls: bool) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS could not be set up: {error.reason or error}"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, ConnectionError):
        return (
            "it closed the connection during the TLS handshake; perhaps it does not use TLS"
            if tls
            else "it closed the connection"
        )
    return str(getattr(error, "strerror", "") or error) or type(error).__name__
