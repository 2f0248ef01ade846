"""Policy of the connection guard: decides which connections of a gRPC listener are closed, and for what reason. Pure.

A connection is a stranger until a call on it has shown an accepted credential. The age, bytes, calls and number of
strangers are limited. If there are too many, for one peer or in total, the oldest connections of the largest peer are
closed first. Peers whose connections misbehaved recently have lower limits, but are never excluded, because tenants may
connect from the same address.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hearthd.front.connections.penalties import Penalties

CALLS = 256
"""Number of calls that need no credential (health) that a stranger may make in a burst."""
CALLS_PER_SECOND = 10.0
"""Number of further such calls that a stranger may make each second."""
PENALTY_DIVISOR = 16
"""Divisor of a penalized peer's limits on bytes, age, calls and number of strangers."""
PENALTY_GRACE = 1.0
"""Minimum lifetime, in seconds, of a penalized peer's stranger: time for the first call of a tenant at the same
address."""
CROWD_GRACE = 0.25
"""Age, in seconds, up to which a stranger is not closed because of the number of a penalized peer's connections."""
SETTLED = 1.0
"""Age, in seconds, up to which a stranger does not count towards the number of its peer's strangers, because many
tenants at one address may start at the same time."""
BACKLOG = 32 << 10
"""Number of unread bytes on a Unix socket from which a scan counts as suspicious. The kernel does not count the bytes
that a Unix socket has received."""
BACKLOG_SCANS = 10
"""Number of consecutive suspicious scans after which the connection counts as a flood."""


@dataclass(eq=False, slots=True)
class UnauthenticatedConnection:
    """The guard's record of a connection to a gRPC listener."""

    number: int
    inode: int
    peer: str
    """The group that limits count; see `peers.group_of`."""
    name: str
    """Name as given by `peers.grpc_name`. Empty on a Unix socket."""
    since: float
    """Time of the scan that found the connection, or of its admission if it was held."""
    pid: int = 0
    authenticated: bool = False
    grpc_peer: str = ""
    """gRPC's name of the peer, once a call on the connection has shown an accepted credential."""
    closed: bool = False
    """True once the connection was shut down. gRPC must still close its descriptor."""
    held: bool = False
    """True while the kernel drops the data of the connection, until it is admitted; see `holding`."""
    bytes: int = 0
    """Number of bytes received so far (TCP only)."""
    backlogs: int = 0
    """Number of consecutive scans with much unread data (Unix sockets only)."""
    call_cost: float = 0.0
    """Cost of calls without a credential, which decays by `CALLS_PER_SECOND`."""
    cost_since: float = 0.0
    """Time of the last change of `call_cost`."""
    probed_at: float = field(default=-1.0)
    """Time of the last call that needs no credential."""

    def add_cost(self, cost: float, now: float) -> None:
        """Adds the cost of a call, in calls, after the earlier cost has decayed."""
        self.call_cost = max(0.0, self.call_cost - (now - self.cost_since) * CALLS_PER_SECOND) + cost
        self.cost_since = now


@dataclass(frozen=True)
class UnauthenticatedLimits:
    """The limits of the guard; see `hearthd.front.config.front_limits.ConnectionSettings`."""

    max_strangers: int
    max_strangers_per_peer: int
    timeout: float
    bytes: int


def exceeds_call_limit(connection: UnauthenticatedConnection, is_penalized: bool) -> bool:
    """Returns True if the connection has made too many calls without a credential."""
    return connection.call_cost > CALLS / (PENALTY_DIVISOR if is_penalized else 1)


def connections_to_close(
    strangers: Iterable[UnauthenticatedConnection], limits: UnauthenticatedLimits, penalties: Penalties, now: float
) -> list[tuple[UnauthenticatedConnection, str]]:
    """Returns the connections to close, each with the reason: flood, silent, penalty, address or strangers."""
    closing: dict[UnauthenticatedConnection, str] = {}
    by_peer: defaultdict[str, list[UnauthenticatedConnection]] = defaultdict(list)
    for connection in strangers:
        if connection.authenticated or connection.closed:
            continue
        divisor = PENALTY_DIVISOR if penalties.is_penalized(connection.peer, now) else 1
        if (
            connection.bytes > limits.bytes // divisor
            or exceeds_call_limit(connection, divisor > 1)
            or connection.backlogs >= max(2, BACKLOG_SCANS // divisor)
        ):
            closing[connection] = "flood"
        elif now - max(connection.since, connection.probed_at) > max(
            PENALTY_GRACE, limits.timeout / (1 if connection.held else divisor)
        ):
            closing[connection] = "silent" if divisor == 1 else "penalty"
        else:
            by_peer[connection.peer].append(connection)
    for peer, connections in by_peer.items():
        connections.sort(key=lambda connection: connection.since)
        if penalties.is_penalized(peer, now):
            old = [connection for connection in connections if now - connection.since > CROWD_GRACE]
            for connection in old[
                : max(0, len(connections) - max(1, limits.max_strangers_per_peer // PENALTY_DIVISOR))
            ]:
                closing[connection] = "penalty"
        settled = [connection for connection in connections if now - connection.since > SETTLED]
        for connection in settled[: max(0, len(settled) - limits.max_strangers_per_peer)]:
            closing[connection] = "address"
    remaining = {
        peer: [connection for connection in connections if connection not in closing]
        for peer, connections in by_peer.items()
    }
    for connection in _excess_connections(remaining, limits.max_strangers):
        closing[connection] = "strangers"
    return list(closing.items())


def _excess_connections(
    by_peer: dict[str, list[UnauthenticatedConnection]], maximum: int
) -> list[UnauthenticatedConnection]:
    """Returns the connections in excess of `maximum` in total.

    The largest peers are reduced to a common size, oldest connections first.
    """
    total = sum(map(len, by_peer.values()))
    if total <= maximum:
        return []
    share = maximum
    sizes = sorted(map(len, by_peer.values()))
    available = maximum
    for index, size in enumerate(sizes):
        share = available // (len(sizes) - index)
        if size > share:
            break
        available -= size
    return [
        connection for connections in by_peer.values() for connection in connections[: max(0, len(connections) - share)]
    ]
