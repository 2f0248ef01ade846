"""Holds back the data of penalized peers: their new connections to gRPC's TCP port are admitted one after another.

A peer that floods reconnects as soon as its connection is closed, and each connection costs the data that it sends
before the guard's next scan. Therefore the kernel drops the data of a penalized peer's new connections
(`socket_filter`) until they are admitted; gRPC accepts them but reads nothing. Admitting one connection every
`ADMISSION_INTERVAL` seconds bounds the cost, whatever the number of peers and connections. A tenant at a penalized
address must wait too, and its host then sends the data again, which takes some tenths of a second. Earlier
connections are not affected.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

import structlog

from hearthd.front.connections import socket_filter
from hearthd.front.connections.open_sockets import OpenSockets
from hearthd.front.connections.strangers import UnauthenticatedConnection

log = structlog.get_logger("hearthd.connections")

ADMISSION_INTERVAL = 0.05
"""Minimum interval, in seconds, between two connections that are admitted."""


class AdmissionOrder:
    """Chooses the connection that is admitted next. Pure."""

    def __init__(self, period: float = ADMISSION_INTERVAL) -> None:
        self._period = period
        self._next_admission_at = 0.0
        self._admitted_at: dict[str, float] = {}
        """The time at which each waiting peer last had a connection admitted."""

    def next(self, held: Iterable[UnauthenticatedConnection], now: float) -> UnauthenticatedConnection | None:
        """Returns the oldest connection of the peer that has waited longest since its last admission.

        None: the interval has not passed, or no connection waits.
        """
        oldest: dict[str, UnauthenticatedConnection] = {}
        for connection in held:
            if connection.peer not in oldest or connection.since < oldest[connection.peer].since:
                oldest[connection.peer] = connection
        self._admitted_at = {
            peer: time for peer, time in self._admitted_at.items() if peer in oldest or now - time < 60.0
        }
        if now < self._next_admission_at or not oldest:
            return None
        peer = min(oldest, key=lambda peer: self._admitted_at.get(peer, 0.0))
        self._next_admission_at, self._admitted_at[peer] = now + self._period, now
        return oldest[peer]


class AcceptFilter:
    """The filter of the listening sockets. Belongs to the guard."""

    def __init__(self, sockets: OpenSockets, listeners: Iterable[socket.socket]) -> None:
        """Creates the filter. `listeners`: gRPC's listening sockets."""
        self._sockets = sockets
        self._listeners = [listener for listener in listeners if listener.family != socket.AF_UNIX]
        self._peers: frozenset[str] = frozenset()
        self._was_set = False
        """True once a filter was set: new connections may have it until a scan sees them."""
        self._order = AdmissionOrder()
        self._unsupported = False

    def hold(self, peers: Iterable[str]) -> None:
        """Holds the new connections of exactly these peers from now on."""
        peers = frozenset(peers)
        if peers == self._peers or self._unsupported:
            return
        try:
            for listener in self._listeners:
                if peers:
                    socket_filter.attach(listener, socket_filter.program(sorted(peers)))
                else:
                    socket_filter.detach(listener)
        except OSError as error:
            self._unsupported = True
            fix = "Allow setsockopt(SO_ATTACH_FILTER); without it a flood of connections slows tenants down."
            log.warning("no_socket_filter", why=error.strerror or str(error), fix=fix)
            return
        self._peers, self._was_set = peers, True

    def add(self, connection: UnauthenticatedConnection) -> bool:
        """Returns True if a connection that a scan has just found is held.

        Removes the filter from other connections.
        """
        if not self._was_set or not connection.name:
            return False
        connection.held = connection.peer in self._peers
        if not connection.held:
            self._sockets.remove_filter(connection.number, connection.inode)
        return connection.held

    def admit_held(self, strangers: Iterable[UnauthenticatedConnection], now: float) -> None:
        """Admits the held connections whose peers are no longer penalized, and the next one of a penalized peer."""
        held = [connection for connection in strangers if connection.held and not connection.closed]
        chosen = [connection for connection in held if connection.peer not in self._peers]
        if (
            next_held := self._order.next((connection for connection in held if connection.peer in self._peers), now)
        ) is not None:
            chosen.append(next_held)
        for connection in chosen:
            self._sockets.remove_filter(connection.number, connection.inode)
            connection.held, connection.since = False, now
