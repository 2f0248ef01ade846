"""The data of penalized peers is held back: their new connections to gRPC's TCP port take turns.

A peer that floods connects again as soon as it is closed, and each of its connections costs what it sends until the
guard's next look. So the kernel drops the data of a penalized peer's new connections (`socket_filter`) until it is
their turn; gRPC accepts them and reads nothing. One turn in `TURN` seconds, whatever the number of peers and
connections, bounds the cost of all. A tenant behind a penalized address waits for its turn, and its host then sends
again: some tenths of a second. Connections that were there before are not concerned.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

import structlog

from hearthd.front.connections import socket_filter
from hearthd.front.connections.open_sockets import OpenSockets
from hearthd.front.connections.strangers import UnauthenticatedConnection

log = structlog.get_logger("hearthd.connections")

TURN = 0.05
"""Seconds between two connections whose data is let in."""


class TurnOrder:
    """Chooses the connection that is let in next. Pure."""

    def __init__(self, period: float = TURN) -> None:
        self._period = period
        self._due = 0.0
        self._served: dict[str, float] = {}
        """The time of the last turn of each waiting peer."""

    def next(self, held: Iterable[UnauthenticatedConnection], now: float) -> UnauthenticatedConnection | None:
        """The oldest connection of the peer whose last turn is longest ago; None: no turn is due, or none waits."""
        oldest: dict[str, UnauthenticatedConnection] = {}
        for each in held:
            if each.peer not in oldest or each.since < oldest[each.peer].since:
                oldest[each.peer] = each
        self._served = {peer: when for peer, when in self._served.items() if peer in oldest or now - when < 60.0}
        if now < self._due or not oldest:
            return None
        peer = min(oldest, key=lambda peer: self._served.get(peer, 0.0))
        self._due, self._served[peer] = now + self._period, now
        return oldest[peer]


class AcceptFilter:
    """The listening sockets' filter. Belongs to the guard."""

    def __init__(self, sockets: OpenSockets, listening: Iterable[socket.socket]) -> None:
        """`listening`: gRPC's listening sockets."""
        self._sockets = sockets
        self._listening = [one for one in listening if one.family != socket.AF_UNIX]
        self._peers: frozenset[str] = frozenset()
        self._used = False
        """A filter was set once: connections may have it until they are seen."""
        self._turns = TurnOrder()
        self._refused = False

    def hold(self, peers: Iterable[str]) -> None:
        """New connections of these peers, and of no others, are held from now on."""
        peers = frozenset(peers)
        if peers == self._peers or self._refused:
            return
        try:
            for one in self._listening:
                if peers:
                    socket_filter.attach(one, socket_filter.program(sorted(peers)))
                else:
                    socket_filter.detach(one)
        except OSError as error:
            self._refused = True
            fix = "Allow setsockopt(SO_ATTACH_FILTER); without it a flood of connections slows tenants down."
            log.warning("no_socket_filter", why=error.strerror or str(error), fix=fix)
            return
        self._peers, self._used = peers, True

    def enter(self, each: UnauthenticatedConnection) -> bool:
        """Returns True if a connection that was just seen is held; takes the filter away from others."""
        if not self._used or not each.name:
            return False
        each.held = each.peer in self._peers
        if not each.held:
            self._sockets.remove_filter(each.number, each.inode)
        return each.held

    def let_in(self, strangers: Iterable[UnauthenticatedConnection], now: float) -> None:
        """Lets in those whose peers are penalized no more, and the one whose turn it is."""
        held = [each for each in strangers if each.held and not each.closed]
        chosen = [each for each in held if each.peer not in self._peers]
        if (turn := self._turns.next((each for each in held if each.peer in self._peers), now)) is not None:
            chosen.append(turn)
        for each in chosen:
            self._sockets.remove_filter(each.number, each.inode)
            each.held, each.since = False, now
