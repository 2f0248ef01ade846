"""Policy of the connection guard: which connections of a gRPC listener are to be closed, and why. Pure.

A connection is a stranger until a call on it has shown an accepted credential. Strangers are bounded in age, bytes,
calls, and number (per peer and in all, the oldest of the largest peer first). Peers whose connections misbehaved
lately have tighter bounds and never none: tenants may come from the same address.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hearthd.front.connections.penalties import Penalties

CALLS = 256
"""Calls without a credential (health, reflection) that a stranger may make at once."""
CALLS_PER_SECOND = 10.0
"""The rate at which they come back."""
PENALTY_DIVISOR = 16
"""Bytes, age, calls and number of a penalized peer's strangers are divided by this."""
PENALTY_GRACE = 1.0
"""Seconds that a stranger has even then: time for the first call of a tenant at the same address."""
CROWD_GRACE = 0.25
"""Seconds in which a stranger is not closed for the number of a penalized peer's others."""
SETTLED = 1.0
"""Seconds in which a stranger does not count against the number of its peer's: many tenants of one address may start at
once."""
BACKLOG = 32 << 10
"""Unread bytes on a Unix socket, whose received bytes the kernel does not count, that make a scan suspicious."""
BACKLOG_LOOKS = 10
"""Suspicious scans in a row until the connection counts as a flood."""


@dataclass(eq=False, slots=True)
class UnauthenticatedConnection:
    """A connection that has shown no credential yet."""

    number: int
    inode: int
    peer: str
    """The group that limits count: see `peers.group_of`."""
    name: str
    """See `peers.grpc_name`; empty on a Unix socket."""
    since: float
    pid: int = 0
    proven: bool = False
    called: str = ""
    """gRPC's name of the peer, once a call on it has shown an accepted credential."""
    closed: bool = False
    """True once it was shut down; gRPC has yet to close its descriptor."""
    held: bool = False
    """The kernel drops its data until it is its turn: see `holding`."""
    bytes: int = 0
    """Received so far (TCP)."""
    backlogs: int = 0
    """Scans in a row at which much was unread (Unix)."""
    spent: float = 0.0
    """Calls without a credential, less what has come back."""
    spent_at: float = 0.0
    probed: float = field(default=-1.0)
    """The time of its last call that needs no credential."""

    def spend(self, cost: float, now: float) -> None:
        self.spent = max(0.0, self.spent - (now - self.spent_at) * CALLS_PER_SECOND) + cost
        self.spent_at = now


@dataclass(frozen=True)
class UnauthenticatedLimits:
    """See `hearthd.front.config.front_limits.ConnectionSettings`."""

    most: int
    most_per_peer: int
    timeout: float
    bytes: int


def overspent(each: UnauthenticatedConnection, penalized: bool) -> bool:
    """Returns True if the connection has made more calls without a credential than it may."""
    return each.spent > CALLS / (PENALTY_DIVISOR if penalized else 1)


def judge(
    strangers: Iterable[UnauthenticatedConnection], bounds: UnauthenticatedLimits, penalties: Penalties, now: float
) -> list[tuple[UnauthenticatedConnection, str]]:
    """The connections to close, each with its reason: flood, silent, penalty, address, strangers."""
    closing: dict[UnauthenticatedConnection, str] = {}
    by_peer: defaultdict[str, list[UnauthenticatedConnection]] = defaultdict(list)
    for each in strangers:
        if each.proven or each.closed:
            continue
        divisor = PENALTY_DIVISOR if penalties.penalized(each.peer, now) else 1
        if (
            each.bytes > bounds.bytes // divisor
            or overspent(each, divisor > 1)
            or each.backlogs >= max(2, BACKLOG_LOOKS // divisor)
        ):
            closing[each] = "flood"
        elif now - max(each.since, each.probed) > max(PENALTY_GRACE, bounds.timeout / (1 if each.held else divisor)):
            closing[each] = "silent" if divisor == 1 else "penalty"
        else:
            by_peer[each.peer].append(each)
    for peer, several in by_peer.items():
        several.sort(key=lambda each: each.since)
        if penalties.penalized(peer, now):
            old = [each for each in several if now - each.since > CROWD_GRACE]
            for each in old[: max(0, len(several) - max(1, bounds.most_per_peer // PENALTY_DIVISOR))]:
                closing[each] = "penalty"
        settled = [each for each in several if now - each.since > SETTLED]
        for each in settled[: max(0, len(settled) - bounds.most_per_peer)]:
            closing[each] = "address"
    rest = {peer: [each for each in several if each not in closing] for peer, several in by_peer.items()}
    for each in _beyond(rest, bounds.most):
        closing[each] = "strangers"
    return list(closing.items())


def _beyond(by_peer: dict[str, list[UnauthenticatedConnection]], most: int) -> list[UnauthenticatedConnection]:
    """Returns the connections over `most` in all: the largest peers are cut to a common size, oldest connections
    first."""
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
    found = [each for several in by_peer.values() for each in several[: max(0, len(several) - share)]]
    return found
