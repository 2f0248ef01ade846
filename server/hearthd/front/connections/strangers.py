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
BACKLOG_LOOKS = 10
"""Number of consecutive suspicious scans after which the connection counts as a flood."""


@dataclass(eq=False, slots=True)
class UnauthenticatedConnection:
    """A connection to a gRPC listener, and what the guard knows of it."""

    number: int
    inode: int
    peer: str
    """The group that limits count; see `peers.group_of`."""
    name: str
    """Name as given by `peers.grpc_name`. Empty on a Unix socket."""
    since: float
    pid: int = 0
    authenticated: bool = False
    called: str = ""
    """gRPC's name of the peer, once a call on the connection has shown an accepted credential."""
    closed: bool = False
    """True once the connection was shut down. gRPC has still to close its descriptor."""
    held: bool = False
    """True while the kernel drops the data of the connection, until it is admitted; see `holding`."""
    bytes: int = 0
    """Number of bytes received so far (TCP only)."""
    backlogs: int = 0
    """Number of consecutive scans with much unread data (Unix sockets only)."""
    spent: float = 0.0
    """Cost of calls without a credential, which decays by `CALLS_PER_SECOND`."""
    spent_at: float = 0.0
    probed: float = field(default=-1.0)
    """Time of the last call that needs no credential."""

    def spend(self, cost: float, now: float) -> None:
        """Adds the cost of a call, in calls, after the earlier cost has decayed."""
        self.spent = max(0.0, self.spent - (now - self.spent_at) * CALLS_PER_SECOND) + cost
        self.spent_at = now


@dataclass(frozen=True)
class UnauthenticatedLimits:
    """The limits of the guard; see `hearthd.front.config.front_limits.ConnectionSettings`."""

    most: int
    most_per_peer: int
    timeout: float
    bytes: int


def overspent(connection: UnauthenticatedConnection, penalized: bool) -> bool:
    """Returns True if the connection has made too many calls without a credential."""
    return connection.spent > CALLS / (PENALTY_DIVISOR if penalized else 1)


def connections_to_close(
    strangers: Iterable[UnauthenticatedConnection], bounds: UnauthenticatedLimits, penalties: Penalties, now: float
) -> list[tuple[UnauthenticatedConnection, str]]:
    """Returns the connections to close, each with the reason: flood, silent, penalty, address or strangers."""
    closing: dict[UnauthenticatedConnection, str] = {}
    by_peer: defaultdict[str, list[UnauthenticatedConnection]] = defaultdict(list)
    for connection in strangers:
        if connection.authenticated or connection.closed:
            continue
        divisor = PENALTY_DIVISOR if penalties.penalized(connection.peer, now) else 1
        if (
            connection.bytes > bounds.bytes // divisor
            or overspent(connection, divisor > 1)
            or connection.backlogs >= max(2, BACKLOG_LOOKS // divisor)
        ):
            closing[connection] = "flood"
        elif now - max(connection.since, connection.probed) > max(
            PENALTY_GRACE, bounds.timeout / (1 if connection.held else divisor)
        ):
            closing[connection] = "silent" if divisor == 1 else "penalty"
        else:
            by_peer[connection.peer].append(connection)
    for peer, several in by_peer.items():
        several.sort(key=lambda connection: connection.since)
        if penalties.penalized(peer, now):
            old = [connection for connection in several if now - connection.since > CROWD_GRACE]
            for connection in old[: max(0, len(several) - max(1, bounds.most_per_peer // PENALTY_DIVISOR))]:
                closing[connection] = "penalty"
        settled = [connection for connection in several if now - connection.since > SETTLED]
        for connection in settled[: max(0, len(settled) - bounds.most_per_peer)]:
            closing[connection] = "address"
    rest = {
        peer: [connection for connection in several if connection not in closing] for peer, several in by_peer.items()
    }
    for connection in _beyond(rest, bounds.most):
        closing[connection] = "strangers"
    return list(closing.items())


def _beyond(by_peer: dict[str, list[UnauthenticatedConnection]], most: int) -> list[UnauthenticatedConnection]:
    """Returns the connections in excess of `most` in total.

    The largest peers are reduced to a common size, oldest connections first.
    """
    total = sum(map(len, by_peer.values()))
    if total <= most:
        return []
    share = most
    sizes = sorted(map(len, by_peer.values()))
    left = most
    for index, size in enumerate(sizes):
        share = left // (len(sizes) - index)
        if size > share:
            break
        left -= size
    found = [connection for several in by_peer.values() for connection in several[: max(0, len(several) - share)]]
    return found
