"""The Unix socket for lanes and segments, in addition to that of gRPC.

Clients on this host connect there to reach a device process directly.
"""

from __future__ import annotations

import os

import structlog

from hearth_proto.v1 import device_pb2
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.lanes.ticket_port import PortObserver, TicketPort
from hearthd.front.lanes.tickets import LIFETIME, TicketHolder
from hearthd.front.sockets import MAX_PATH, UnixSocket

log = structlog.get_logger("hearthd.lanes")


class LanePort(TicketPort):
    """The port for lanes and segments of a daemon."""

    def __init__(self, observer: PortObserver, limiter: ConnectionLimiter) -> None:
        super().__init__(observer, limiter)
        self._socket: UnixSocket | None = None

    @property
    def path(self) -> str:
        """The path of the socket. Empty: there is none."""
        return str(self._socket.path) if self._socket is not None else ""

    # ---- offers ----

    def offer(self, holder: TicketHolder) -> device_pb2.LaneOffer | None:
        """Returns an offer with which the holder's client may connect once; None if there is no socket."""
        if self._socket is None:
            return None
        ticket = self.issue(holder)
        return device_pb2.LaneOffer(path=self.path, ticket=ticket, valid_ns=int(LIFETIME * 1e9))

    def withdraw(self, offer: device_pb2.LaneOffer | None) -> None:
        """Invalidates an offer, because its holder has ended."""
        if offer is not None:
            self.tickets.redeem(offer.ticket)

    # ---- socket ----

    def open(self, path: str, *, public: bool) -> None:
        """Starts to listen. With `public`, other users of the host may connect. Raises `ListenError`."""
        if len(os.fsencode(path)) > MAX_PATH:
            log.warning("no_lanes", path=path, why=f"a Unix socket's path has at most {MAX_PATH} bytes")
            return
        unix_socket = UnixSocket(path, public=public, setting="lanes.path")
        unix_socket.claim()
        self._accepting.listen(unix_socket.listen(128))
        self._socket = unix_socket

    async def close(self) -> None:
        """Stops listening. Lanes that were handed over belong to the device processes, and stay."""
        await super().close()
        if self._socket is not None:
            self._socket.release()
        self._socket = None
