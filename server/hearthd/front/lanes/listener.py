"""The Unix socket of lanes and segments, beside gRPC's, where clients on this host connect past the front."""

from __future__ import annotations

import os
import socket

import structlog

from hearth_proto.v1 import device_pb2
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.lanes.ticket_port import PortObserver, TicketPort
from hearthd.front.lanes.tickets import LIFETIME, TicketHolder
from hearthd.front.sockets import UnixSocket

log = structlog.get_logger("hearthd.lanes")

MAX_PATH = 107


class LanePort(TicketPort):
    """The lane port of a daemon."""

    def __init__(self, observer: PortObserver, limiter: ConnectionLimiter) -> None:
        super().__init__(observer, limiter)
        self._socket: UnixSocket | None = None

    @property
    def path(self) -> str:
        """The path of the socket; empty: there is none."""
        return str(self._socket.path) if self._socket is not None else ""

    # ---- offers ----

    def offer(self, attachment: TicketHolder) -> device_pb2.LaneOffer | None:
        """Returns an offer with which the attachment's client may connect once; None without lanes."""
        if self._socket is None:
            return None
        ticket = self.issue(attachment)
        return device_pb2.LaneOffer(path=self.path, ticket=ticket, valid_ns=int(LIFETIME * 1e9))

    def withdraw(self, offer: device_pb2.LaneOffer | None) -> None:
        """The attachment is over."""
        if offer is not None:
            self.tickets.redeem(offer.ticket)

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
        self._socket = place
        self._listen(listener)

    async def close(self) -> None:
        """No further lanes; those that are there are the device processes'."""
        await super().close()
        if self._socket is not None:
            self._socket.release()
        self._socket = None
