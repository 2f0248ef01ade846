"""The guard of the gRPC listeners: closes connections that show no credential in time, or send too much before they do.

Several times a second it lists the process's sockets (`open_sockets`) and applies `strangers.judge`. The interval
between two scans adapts: `REST` seconds without a stranger (an unauthenticated connection), `ALERT` with strangers,
`HASTE` after a connection has arrived or while a peer is penalized. Scans take at most a twentieth of the event loop's
time. New connections of penalized peers are held back (`holding`). Without tenants every client is accepted, and no
connection is closed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import structlog

from hearthd.front.connections.holding import AcceptFilter
from hearthd.front.connections.limiter import ConnectionObserver
from hearthd.front.connections.open_sockets import OpenSockets
from hearthd.front.connections.peers import group_of, normal_name
from hearthd.front.connections.penalties import Penalties
from hearthd.front.connections.socket_filter import MOST_PEERS
from hearthd.front.connections.strangers import (
    BACKLOG,
    UnauthenticatedConnection,
    UnauthenticatedLimits,
    judge,
    overspent,
)

log = structlog.get_logger("hearthd.connections")

REST = 0.1
"""Interval between scans, in seconds, while all connections have shown a credential."""
ALERT = 0.05
"""Interval between scans, in seconds, while there are strangers."""
HASTE = 0.004
"""Interval between scans, in seconds, while a peer is penalized or after a stranger has arrived within the last second.
Also the delay until the first scan of a new connection."""
_SHARE = 20
"""Minimum ratio of the time between scans to the time of a scan."""
_AGAIN = 0.002
"""Minimum interval, in seconds, between scans that search for the connection of a call from an unknown peer."""
_EARLY = 4096
"""Maximum number of remembered peers whose credential was accepted before a scan saw their connection."""

FAILED_COST = 12.0
"""The cost of a call with a missing or wrong credential, in calls; see `strangers.CALLS`."""
UNKNOWN_COST = 8.0
"""The cost, in calls, of a request to an unknown method, or one that was refused before it was decoded."""


class ConnectionGuard:
    """The connection guard of a daemon. Belongs to the event loop."""

    def __init__(
        self,
        bounds: UnauthenticatedLimits,
        observer: ConnectionObserver,
        guarded: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the guard.

        `guarded` returns True if calls have to show credentials, that is, if there are tenants.
        """
        self.bounds = bounds
        self.penalties = Penalties()
        self._observer = observer
        self._guarded = guarded
        self._clock = clock
        self._listeners: dict[str, str] = {}
        """Names of listeners, by port (as text) or path."""
        self._sockets: OpenSockets | None = None
        self._holding: AcceptFilter | None = None
        self._listening: list[socket.socket] = []
        """Duplicates of gRPC's listening sockets."""
        self._connections: dict[int, UnauthenticatedConnection] = {}
        """The connections of the gRPC listeners, including authenticated ones, by descriptor."""
        self._named: dict[str, UnauthenticatedConnection] = {}
        self._accepted: set[str] = set()
        """Peers with an accepted credential, by gRPC's name of the peer."""
        self._early: dict[str, str] = {}
        """gRPC's names of peers whose credential was accepted before a scan saw their connection, by `peers.grpc_name`;
        oldest first."""
        self._users: set[str] = set()
        """Users (`uid:N`) on Unix sockets with an accepted credential."""
        self._all_users = False
        """True if a credential was accepted over a Unix socket and the user that showed it is unknown."""
        self._cut: OrderedDict[str, None] = OrderedDict()
        """Names of the last connections that ended without showing a credential."""
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._resting = 0.0
        """The event loop's time before which no scan starts, so that scans do not exceed their share of the time."""

    # ---- start and stop ----

    def start(self, ports: Iterable[int], paths: Iterable[str]) -> None:
        """Starts to watch the gRPC listeners on these TCP ports and Unix sockets."""
        self._listeners = {str(port): "grpc" for port in ports} | dict.fromkeys(paths, "grpc_unix")
        try:
            sockets = OpenSockets()
            self._listening = sockets.listening(self._listeners)
        except OSError as error:
            log.warning("no_connection_guard", why=error.strerror or str(error), fix="Mount /proc.")
            return
        self._sockets, self._holding = sockets, AcceptFilter(sockets, self._listening)
        self._await_arrivals()
        self._arm(REST)

    def stop(self) -> None:
        """Stops the scans and closes the guard's own descriptors. Connections stay open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ignore_arrivals()
        for one in self._listening:
            one.close()
        self._listening.clear()
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    @property
    def descriptors(self) -> int:
        """Number of open descriptors of the process at the last scan."""
        return self._sockets.descriptors if self._sockets is not None else 0

    @property
    def strangers(self) -> int:
        """Number of connections of the gRPC listeners that have shown no accepted credential, as of the last scan."""
        return sum(not each.proven for each in self._connections.values())

    # ---- reports about calls ----

    def accepted(self, peer: str, uid: int | None) -> None:
        """Notes that a call from `peer` (gRPC's name) has shown an accepted credential.

        Repeated calls for the same peer are cheap.
        """
        if peer in self._accepted:
            return
        name = normal_name(peer)
        if not name:
            if uid is not None and uid >= 0:
                self._users.add(f"uid:{uid}")
            else:
                self._all_users = True
            return
        self._accepted.add(peer)
        found = self._named.get(name)
        if found is not None:
            found.proven, found.called = True, peer
            return
        self._early[name] = peer
        if len(self._early) > _EARLY:
            self._accepted.discard(self._early.pop(next(iter(self._early))))

    def spent(self, peer: str, cost: float = 1.0) -> None:
        """Adds `cost` for a call from `peer` without a valid credential.

        Closes the connection if it exceeds its limit.
        """
        found = self._named.get(normal_name(peer))
        if found is not None and not found.proven:
            now = self._clock()
            found.spend(cost, now)
            if cost <= 1:
                found.probed = now
            # Checked now, because an event loop that is busy with a flood of calls scans late.
            penalized = self.penalties.penalized(found.peer, now)
            if self._sockets is not None and not found.closed and self._guarded() and overspent(found, penalized):
                self._close(self._sockets, found, "flood", now)
        self._look_within(HASTE)

    def admits(self, peer: str) -> bool:
        """Returns True if a call from `peer` may be processed.

        An unauthenticated call is refused if its connection was closed here, or has received more bytes than allowed.
        gRPC limits the metadata of a frame, not of a call, and passes on calls whose connection was closed while they
        were being received.
        """
        if peer in self._accepted or self._sockets is None or not self._guarded():
            return True
        name = normal_name(peer)
        each = self._named.get(name)
        if name and each is None and name not in self._cut and self._clock() - self._looked > _AGAIN:
            self.look()
            each = self._named.get(name)
        if each is None:
            return name not in self._cut
        if each.proven:
            return True
        if not each.closed:
            self._measure(self._sockets, each)
            if each.bytes <= self.bounds.bytes // 2:
                return True
            self._close(self._sockets, each, "flood", self._clock())
        return False

    # ---- scans ----

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _look_within(self, seconds: float) -> None:
        if self._soon or self._timer is None:
            return
        self._soon, now = True, self._now()
        if self._timer.when() - now > seconds:
            self._arm(max(seconds, self._resting - now))

    def _arrived(self) -> None:
        """Schedules a scan, because a connection is about to come. gRPC reads whatever it sends before the scan."""
        self._ignore_arrivals()
        self._look_within(HASTE)

    def _await_arrivals(self) -> None:
        for one in self._listening:
            asyncio.get_running_loop().add_reader(one, self._arrived)

    def _ignore_arrivals(self) -> None:
        for one in self._listening:
            asyncio.get_running_loop().remove_reader(one)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._sockets is None:
            return
        self._soon = False
        began = time.perf_counter()
        wait = REST
        try:
            wait = self.look()
        except OSError as error:
            log.warning("connection_guard", why=error.strerror or str(error))
        finally:
            self._await_arrivals()
            rest = _SHARE * (time.perf_counter() - began)
            self._resting = self._now() + rest
            self._arm(max(wait, rest))

    def look(self) -> float:
        """Scans: updates the table, and closes the connections that exceed a limit.

        Returns the time until the next scan in seconds.
        """
        sockets, holding = self._sockets, self._holding
        assert sockets is not None and holding is not None
        now = self._looked = self._clock()
        new, gone = sockets.scan()
        for number in gone:
            self._forget(number)
        for number, inode in new.items():
            self._enter(sockets, number, inode, now)
        if not self._guarded():
            holding.hold(())
            holding.let_in(self._connections.values(), now)
            return REST
        for each in self._connections.values():
            if not each.proven and not each.closed:
                self._measure(sockets, each)
        self._all_users = False
        for each, reason in judge(self._connections.values(), self.bounds, self.penalties, now):
            self._close(sockets, each, reason, now)
        penalized = self.penalties.worst(now, MOST_PEERS)
        holding.hold(penalized)
        holding.let_in(self._connections.values(), now)
        strangers = [each for each in self._connections.values() if not each.proven]
        if strangers and now - max(each.since for each in strangers) < 1.0:
            return HASTE
        if penalized:
            return HASTE
        return ALERT if strangers else REST

    def _enter(self, sockets: OpenSockets, number: int, inode: int, now: float) -> None:
        found = sockets.find(number, inode)
        if found is None or found.local not in self._listeners:
            return
        each = UnauthenticatedConnection(number, inode, group_of(found.peer), found.name, now, found.pid, spent_at=now)
        self._connections[number] = each
        if found.name:
            self._named[found.name] = each
            self._cut.pop(found.name, None)
            called = self._early.pop(found.name, "")
            each.proven, each.called = bool(called), called
        assert self._holding is not None
        if self._holding.enter(each):
            self._observer.connection_held(self._listener(each), each.peer)
        self._observer.connection_opened(self._listener(each))

    def _measure(self, sockets: OpenSockets, each: UnauthenticatedConnection) -> None:
        received = sockets.received(each.number, each.inode, tcp=bool(each.name))
        if each.name:
            each.bytes = max(0, received)
        else:
            each.backlogs = each.backlogs + 1 if received > BACKLOG else 0
            each.proven = self._all_users or each.peer in self._users

    def _close(self, sockets: OpenSockets, each: UnauthenticatedConnection, reason: str, now: float) -> None:
        end = sockets.reset if reason in ("flood", "penalty") else sockets.shut
        if not end(each.number, each.inode):
            return
        each.closed = True
        if reason == "flood":
            self.penalties.add(each.peer, now)
            each.bytes = 0  # they have been charged to the penalty
        self._observer.connection_refused(self._listener(each), each.peer, reason)

    def _forget(self, number: int) -> None:
        each = self._connections.pop(number, None)
        if each is None:
            return
        self._observer.connection_closed(self._listener(each))
        if each.name and not each.proven:
            self.penalties.add(each.peer, self._looked, each.bytes / self.bounds.bytes)
            self._cut[each.name] = None
            if len(self._cut) > _EARLY:
                self._cut.popitem(last=False)
        if self._named.get(each.name) is each:
            del self._named[each.name]
        self._accepted.discard(each.called)

    @staticmethod
    def _listener(each: UnauthenticatedConnection) -> str:
        return "grpc" if each.name else "grpc_unix"
