"""The TCP port for bulk data connections (`listen.lanes`), and the address at which clients reach it."""

from __future__ import annotations

import ipaddress
import socket

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.stripes import TICKET_BYTES, TICKET_NAME
from hearthd.front.addresses import Address
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.lanes.ticket_port import PortObserver, TicketPort
from hearthd.front.sockets import listen_error


class StripePort(TicketPort):
    """The port for stripes of a daemon."""

    ticket_bytes = (TICKET_BYTES, TICKET_NAME)
    """Accepted lengths of tickets: a whole ticket or, before TLS, the part that names it."""

    def __init__(self, observer: PortObserver, limiter: ConnectionLimiter) -> None:
        super().__init__(observer, limiter)
        self._address: Address | None = None
        self._grpc_host = ""

    def open(self, address: Address, grpc_host: str = "") -> Address:
        """Starts to listen, and returns the address in use (with port 0, any free port).

        `grpc_host`: the host on which gRPC listens. Raises `ListenError`.
        """
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((address.host, address.port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise listen_error(address, "lanes", error) from None
        self._address = Address(address.host, listener.getsockname()[1])
        self._grpc_host = grpc_host
        self._accepting.listen(listener)
        return self._address

    def reached_by(self, peer: str) -> Address:
        """Returns the address to which a client connects.

        `peer` is gRPC's name of the client. An empty host means the host to which the client sends its calls.

        Raises `UNSUPPORTED` if the port is not open, or the client cannot reach it.
        """
        if self._address is None:
            raise Refusal(
                Reason.UNSUPPORTED,
                "This daemon accepts no connections for bulk data over TCP.",
                fix='Use Upload and Download, or have the daemon\'s operator set listen.lanes, e.g. "127.0.0.1:7423".',
            )
        return reached_by(peer, self._address, self._grpc_host)

    async def close(self) -> None:
        """Stops accepting connections; `reached_by` then raises `UNSUPPORTED`. Stripes that were handed over stay."""
        await super().close()
        self._address = None


def reached_by(peer: str, listening: Address, grpc_host: str) -> Address:
    """Returns the address to which a client connects.

    An empty host means the host to which the client sends its calls.

    `peer`: gRPC's name of the client; `listening`: the port's own address; `grpc_host`: the host on which gRPC listens.
    Raises `UNSUPPORTED` for a client on another host if the port listens on loopback.
    """
    if listening.loopback and not _on_this_host(peer):
        raise Refusal(
            Reason.UNSUPPORTED,
            "This daemon accepts connections for bulk data over TCP only from its own host.",
            fix="Use Upload and Download, or have the daemon's operator set listen.lanes to an address that other "
            "hosts reach.",
            details={"listen.lanes": str(listening)},
        )
    if peer.startswith("unix:"):
        local = "::1" if ":" in listening.host else "127.0.0.1"
        return Address(local if listening.wildcard else listening.host, listening.port)
    # If gRPC and this port listen on the same host, the client already knows a name or tunnel that leads there.
    is_same_host = listening.wildcard or listening.host == grpc_host
    return Address("" if is_same_host else listening.host, listening.port)


def _on_this_host(peer: str) -> bool:
    """Returns True if gRPC's name of a client denotes a client on this host.

    Such names are `unix:...`, `ipv4:1.2.3.4:5` and `ipv6:%5B::1%5D:5`.
    """
    if peer.startswith("unix:"):
        return True
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
