"""The guard of the gRPC listeners: closes connections that show no credential in time, or send too much before they do.

Several times a second it lists the process's sockets (`open_sockets`) and applies `strangers.connections_to_close`. The
interval between two scans adapts: `IDLE_INTERVAL` seconds without a stranger (an unauthenticated connection),
`STRANGER_INTERVAL` with strangers, `SHORT_INTERVAL` after a connection has arrived or while a peer is penalized. Scans
take at most a twentieth of the event loop's time. New connections of penalized peers are held back (`holding`). Without
tenants every client is accepted, and no connection is closed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import structlog

from hearthd.front.connections.counts import ConnectionCounts
from hearthd.front.connections.holding import AcceptFilter
from hearthd.front.connections.open_sockets import OpenSockets
from hearthd.front.connections.peers import group_of, normal_name
from hearthd.front.connections.penalties import Penalties
from hearthd.front.connections.socket_filter import MAX_PEERS
from hearthd.front.connections.strangers import (
    BACKLOG,
    UnauthenticatedConnection,
    UnauthenticatedLimits,
    connections_to_close,
    exceeds_call_limit,
)

log = structlog.get_logger("hearthd.connections")

IDLE_INTERVAL = 0.1
"""Interval between scans, in seconds, while all connections have shown a credential."""
STRANGER_INTERVAL = 0.05
"""Interval between scans, in seconds, while there are strangers."""
SHORT_INTERVAL = 0.004
"""Interval between scans, in seconds, while a peer is penalized or after a stranger has arrived within the last second.
Also the delay until the first scan of a new connection."""
_MIN_PAUSE_RATIO = 20
"""Minimum ratio of the time between scans to the time of a scan."""
_SEARCH_INTERVAL = 0.002
"""Minimum interval, in seconds, between scans that search for the connection of a call from an unknown peer."""
_MAX_REMEMBERED_PEERS = 4096
"""Maximum number of remembered peers whose credential was accepted before a scan saw their connection."""

FAILED_COST = 12.0
"""The cost of a call with a missing or wrong credential, in calls; see `strangers.CALLS`."""
UNKNOWN_COST = 8.0
"""The cost, in calls, of a request to an unknown method, or one that was refused before it was decoded."""


class ConnectionGuard:
    """The connection guard of a daemon. Belongs to the event loop."""

    def __init__(
        self,
        limits: UnauthenticatedLimits,
        counts: ConnectionCounts,
        requires_credential: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the guard.

        `requires_credential` returns True if calls must show a credential, which is the case if there are tenants.
        """
        self.limits = limits
        self.penalties = Penalties()
        self._counts = counts
        self._requires_credential = requires_credential
        self._clock = clock
        self._listener_names: dict[str, str] = {}
        """Names of listeners, by port (as text) or path."""
        self._sockets: OpenSockets | None = None
        self._holding: AcceptFilter | None = None
        self._listeners: list[socket.socket] = []
        """Duplicates of gRPC's listening sockets."""
        self._connections: dict[int, UnauthenticatedConnection] = {}
        """The connections of the gRPC listeners, including authenticated ones, by descriptor."""
        self._by_name: dict[str, UnauthenticatedConnection] = {}
        self._accepted: set[str] = set()
        """Peers with an accepted credential, by gRPC's name of the peer."""
        self._credentials_before_scan: dict[str, str] = {}
        """gRPC's names of peers whose credential was accepted before a scan saw their connection, by `peers.grpc_name`;
        oldest first."""
        self._users: set[str] = set()
        """Users (`uid:N`) on Unix sockets with an accepted credential."""
        self._all_users = False
        """True if a credential was accepted over a Unix socket and the user that showed it is unknown."""
        self._ended_peers: OrderedDict[str, None] = OrderedDict()
        """Names of the last connections that ended without showing a credential."""
        self._scanned_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._scan_requested = False
        self._not_before = 0.0
        """The event loop's time before which no scan starts, so that scans do not exceed their share of the time."""

    # ---- start and stop ----

    def start(self, ports: Iterable[int], paths: Iterable[str]) -> None:
        """Starts to watch the gRPC listeners on these TCP ports and Unix sockets."""
        self._listener_names = {str(port): "grpc" for port in ports} | dict.fromkeys(paths, "grpc_unix")
        try:
            sockets = OpenSockets()
            self._listeners = sockets.find_listeners(self._listener_names)
        except OSError as error:
            log.warning("no_connection_guard", why=error.strerror or str(error), fix="Mount /proc.")
            return
        self._sockets, self._holding = sockets, AcceptFilter(sockets, self._listeners)
        self._await_arrivals()
        self._arm(IDLE_INTERVAL)

    def stop(self) -> None:
        """Stops the scans and closes the guard's own descriptors. Connections stay open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ignore_arrivals()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
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
        return sum(not connection.authenticated for connection in self._connections.values())

    # ---- reports about calls ----

    def note_credential(self, peer: str, uid: int | None) -> None:
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
        connection = self._by_name.get(name)
        if connection is not None:
            connection.authenticated, connection.grpc_peer = True, peer
            return
        self._credentials_before_scan[name] = peer
        if len(self._credentials_before_scan) > _MAX_REMEMBERED_PEERS:
            self._accepted.discard(self._credentials_before_scan.pop(next(iter(self._credentials_before_scan))))

    def charge(self, peer: str, cost: float = 1.0) -> None:
        """Adds `cost` for a call from `peer` without a valid credential.

        Closes the connection if it exceeds its limit.
        """
        connection = self._by_name.get(normal_name(peer))
        if connection is not None and not connection.authenticated:
            now = self._clock()
            connection.add_cost(cost, now)
            if cost <= 1:
                connection.probed_at = now
            # Checked now, because an event loop that is busy with a flood of calls scans late.
            is_penalized = self.penalties.is_penalized(connection.peer, now)
            too_many = exceeds_call_limit(connection, is_penalized)
            if self._sockets is not None and not connection.closed and self._requires_credential() and too_many:
                self._close(self._sockets, connection, "flood", now)
        self._scan_within(SHORT_INTERVAL)

    def admits(self, peer: str) -> bool:
        """Returns True if a call from `peer` may be processed.

        An unauthenticated call is refused if its connection was closed here, or has received more bytes than allowed.
        gRPC limits the metadata of a frame, not of a call, and passes on calls whose connection was closed while they
        were being received.
        """
        if peer in self._accepted or self._sockets is None or not self._requires_credential():
            return True
        name = normal_name(peer)
        connection = self._by_name.get(name)
        if (
            name
            and connection is None
            and name not in self._ended_peers
            and self._clock() - self._scanned_at > _SEARCH_INTERVAL
        ):
            self.scan()
            connection = self._by_name.get(name)
        if connection is None:
            return name not in self._ended_peers
        if connection.authenticated:
            return True
        if not connection.closed:
            self._measure(self._sockets, connection)
            if connection.bytes <= self.limits.bytes // 2:
                return True
            self._close(self._sockets, connection, "flood", self._clock())
        return False

    # ---- scans ----

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _scan_within(self, seconds: float) -> None:
        if self._scan_requested or self._timer is None:
            return
        self._scan_requested, now = True, self._now()
        if self._timer.when() - now > seconds:
            self._arm(max(seconds, self._not_before - now))

    def _on_arrival(self) -> None:
        """Schedules a scan, because a connection is arriving. gRPC reads the data that it sends before the scan."""
        self._ignore_arrivals()
        self._scan_within(SHORT_INTERVAL)

    def _await_arrivals(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._on_arrival)

    def _ignore_arrivals(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._run_scan)

    def _run_scan(self) -> None:
        if self._sockets is None:
            return
        self._scan_requested = False
        started_at = time.perf_counter()
        interval = IDLE_INTERVAL
        try:
            interval = self.scan()
        except OSError as error:
            log.warning("connection_guard", why=error.strerror or str(error))
        finally:
            self._await_arrivals()
            pause = _MIN_PAUSE_RATIO * (time.perf_counter() - started_at)
            self._not_before = self._now() + pause
            self._arm(max(interval, pause))

    def scan(self) -> float:
        """Scans: updates the table, and closes the connections that exceed a limit.

        Returns the time until the next scan in seconds.
        """
        sockets, holding = self._sockets, self._holding
        assert sockets is not None and holding is not None
        now = self._scanned_at = self._clock()
        opened, closed = sockets.scan()
        for number in closed:
            self._forget(number)
        for number, inode in opened.items():
            self._add(sockets, number, inode, now)
        if not self._requires_credential():
            holding.hold(())
            holding.admit_held(self._connections.values(), now)
            return IDLE_INTERVAL
        for connection in self._connections.values():
            if not connection.authenticated and not connection.closed:
                self._measure(sockets, connection)
        self._all_users = False
        for connection, reason in connections_to_close(self._connections.values(), self.limits, self.penalties, now):
            self._close(sockets, connection, reason, now)
        penalized = self.penalties.worst(now, MAX_PEERS)
        holding.hold(penalized)
        holding.admit_held(self._connections.values(), now)
        strangers = [connection for connection in self._connections.values() if not connection.authenticated]
        if strangers and now - max(connection.since for connection in strangers) < 1.0:
            return SHORT_INTERVAL
        if penalized:
            return SHORT_INTERVAL
        return STRANGER_INTERVAL if strangers else IDLE_INTERVAL

    def _add(self, sockets: OpenSockets, number: int, inode: int, now: float) -> None:
        open_socket = sockets.find(number, inode)
        if open_socket is None or open_socket.local not in self._listener_names:
            return
        connection = UnauthenticatedConnection(
            number, inode, group_of(open_socket.peer), open_socket.name, now, open_socket.pid, cost_since=now
        )
        self._connections[number] = connection
        if open_socket.name:
            self._by_name[open_socket.name] = connection
            self._ended_peers.pop(open_socket.name, None)
            grpc_peer = self._credentials_before_scan.pop(open_socket.name, "")
            connection.authenticated, connection.grpc_peer = bool(grpc_peer), grpc_peer
        assert self._holding is not None
        if self._holding.add(connection):
            self._counts.connection_held(self._listener(connection), connection.peer)
        self._counts.connection_opened(self._listener(connection))

    def _measure(self, sockets: OpenSockets, connection: UnauthenticatedConnection) -> None:
        received = sockets.received(connection.number, connection.inode, tcp=bool(connection.name))
        if connection.name:
            connection.bytes = max(0, received)
        else:
            connection.backlogs = connection.backlogs + 1 if received > BACKLOG else 0
            connection.authenticated = self._all_users or connection.peer in self._users

    def _close(self, sockets: OpenSockets, connection: UnauthenticatedConnection, reason: str, now: float) -> None:
        drops_unread = reason in ("flood", "penalty")
        if not sockets.disconnect(connection.number, connection.inode, drops_unread=drops_unread):
            return
        connection.closed = True
        if reason == "flood":
            self.penalties.add(connection.peer, now)
            connection.bytes = 0  # they have been charged to the penalty
        self._counts.connection_refused(self._listener(connection), connection.peer, reason)

    def _forget(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        self._counts.connection_closed(self._listener(connection))
        if connection.name and not connection.authenticated:
            self.penalties.add(connection.peer, self._scanned_at, connection.bytes / self.limits.bytes)
            self._ended_peers[connection.name] = None
            if len(self._ended_peers) > _MAX_REMEMBERED_PEERS:
                self._ended_peers.popitem(last=False)
        if self._by_name.get(connection.name) is connection:
            del self._by_name[connection.name]
        self._accepted.discard(connection.grpc_peer)

    @staticmethod
    def _listener(connection: UnauthenticatedConnection) -> str:
        return "grpc" if connection.name else "grpc_unix"
