"""Limits on the connections of one listener: in total, of strangers, and of strangers of one peer.

A stranger is a connection that has shown no accepted credential. Pure, except for time limits, which use the running
event loop. Every listener that accepts connections itself has one `ConnectionLimiter`. An asyncio protocol uses it as
follows:

>>> class Protocol(asyncio.Protocol):
...     def connection_made(self, transport):
...         self._slot = limiter.admit(peer_name(transport), transport.abort)
...         if self._slot is None:
...             transport.abort()  # refused, counted and logged already
...             return
...         self._slot.expect()  # a credential or a request within `limiter.timeout`, else `transport.abort`
...     def request_complete(self):
...         self._slot.mark_authenticated()  # an accepted credential: no longer a stranger, no time limit
...     def connection_lost(self, exc):
...         if self._slot is not None:
...             self._slot.release()

A listener whose connections show a credential with each request (HTTP) calls `mark_authenticated` while an accepted
request is under way and `mark_unauthenticated` afterwards: between two requests the connection is a stranger again, and
the youngest one.

A stranger in excess of a limit displaces another stranger: the oldest of the peer that has most strangers. A peer that
opens as many connections as it may thus only displaces its own, and a probe or a new tenant can still connect. If there
is no stranger to displace, a few more connections are admitted, for probes only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hearthd.front.connections.counts import ConnectionCounts
from hearthd.front.connections.peers import group_of


class ConnectionSlot:
    """The slot of an open connection."""

    __slots__ = ("_limiter", "_timer", "drop", "peer", "reserved", "stranger")

    def __init__(self, limiter: ConnectionLimiter, peer: str, drop: Callable[[], None], reserved: bool = False) -> None:
        self.peer = peer
        """The group that limits count: an address, an IPv6 network or a user."""
        self.stranger = True
        self.reserved = reserved
        """True if the connection exceeds the limits and was admitted because it may be a probe."""
        self._limiter = limiter
        self.drop = drop
        """Closes the connection."""
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float | None = None) -> None:
        """Drops the connection unless `mark_authenticated`, `release` or another `expect` is called in time.

        The time is `seconds`; None: the limiter's timeout.
        """
        self._cancel()
        wait = self._limiter.timeout if seconds is None else seconds
        self._timer = asyncio.get_running_loop().call_later(wait, self._limiter._on_timeout, self)

    def mark_authenticated(self) -> None:
        """Notes that the connection has shown an accepted credential. It is no longer a stranger."""
        self._cancel()
        if self.stranger:
            self._limiter._remove_stranger(self)
            self.stranger = False

    def mark_unauthenticated(self) -> None:
        """Makes the connection a stranger again, and the youngest one."""
        self._limiter._add_stranger(self)

    def release(self) -> None:
        """Releases the slot of a closed connection. A second call does nothing."""
        self._cancel()
        self._limiter._release(self)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True)
class LimiterView:
    """State of a `ConnectionLimiter`, for tests and diagnostics."""

    slots: frozenset[ConnectionSlot]
    """Slots of the open connections."""
    by_peer: Mapping[str, int]
    """Number of open connections, by peer."""
    strangers_by_peer: Mapping[str, int]
    """Number of strangers, by peer."""


class ConnectionLimiter:
    """The open connections of one listener, and their limits."""

    def __init__(
        self,
        listener: str,
        counts: ConnectionCounts,
        *,
        max_connections: int,
        max_strangers: int,
        max_strangers_per_peer: int,
        timeout: float,
        max_per_peer: int | None = None,
        reserve: int = 0,
    ) -> None:
        """Creates a limiter. All numbers are numbers of connections.

        Args:
            listener: name of the listener in metrics and logs.
            counts: counts and logs connections.
            max_connections: maximum in total.
            max_strangers: maximum of strangers in total.
            max_strangers_per_peer: maximum of strangers of one peer.
            timeout: default time limit of `ConnectionSlot.expect`, in seconds.
            max_per_peer: maximum of one peer, including authenticated connections; None: no limit.
            reserve: connections for probes beyond `max_connections` and `max_per_peer`.
        """
        self.listener = listener
        self.max_connections = max_connections
        self.max_per_peer = max_per_peer
        self.max_strangers = max_strangers
        self.max_strangers_per_peer = max_strangers_per_peer
        self.reserve = reserve
        self.timeout = timeout
        self._counts = counts
        self._slots: set[ConnectionSlot] = set()
        self._strangers: dict[str, OrderedDict[ConnectionSlot, None]] = {}
        """Slots of strangers by peer, oldest first."""
        self._stranger_count = 0
        self._by_peer: Counter[str] = Counter()
        """Number of open connections, by peer."""

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._slots)

    @property
    def strangers(self) -> int:
        """Number of open connections that have shown no accepted credential."""
        return self._stranger_count

    def inspect(self) -> LimiterView:
        """Returns the open connections, and the counts to which the limits apply."""
        strangers = {peer: len(slots) for peer, slots in self._strangers.items()}
        return LimiterView(frozenset(self._slots), dict(self._by_peer), strangers)

    def admit(self, peer: str, drop: Callable[[], None]) -> ConnectionSlot | None:
        """Returns a slot for a new connection; None if the connection must be closed immediately.

        May drop a stranger to make room.

        Args:
            peer: an IP address, or `uid:N` on a Unix socket.
            drop: closes the connection; called at most once, and never from `admit` for the connection itself.
        """
        group = group_of(peer)
        peer_strangers = len(self._strangers.get(group, ()))
        peer_is_full = self.max_per_peer is not None and self._by_peer[group] >= self.max_per_peer
        reserved = False
        if peer_strangers >= self.max_strangers_per_peer or (peer_is_full and peer_strangers):
            self._evict(group, "address")
        elif (
            not peer_is_full
            and self._stranger_count
            and (self._stranger_count >= self.max_strangers or len(self._slots) >= self.max_connections)
        ):
            self.evict("strangers")
        elif peer_is_full or len(self._slots) >= self.max_connections:
            reserved = self._has_room_for_probe(group)
            if not reserved:
                self._counts.connection_refused(self.listener, peer, "address" if peer_is_full else "full")
                return None
        slot = ConnectionSlot(self, group, drop, reserved)
        self._slots.add(slot)
        self._by_peer[group] += 1
        self._add_stranger(slot)
        self._counts.connection_opened(self.listener)
        return slot

    def _has_room_for_probe(self, group: str) -> bool:
        excess = len(self._slots) - self.max_connections
        if self.max_per_peer is not None:
            excess = max(excess, self._by_peer[group] - self.max_per_peer)
        return excess < self.reserve

    def evict(self, reason: str) -> None:
        """Drops the oldest stranger of the peer that has most strangers, if there is one."""
        if self._strangers:
            self._evict(max(self._strangers, key=lambda peer: len(self._strangers[peer])), reason)

    def _evict(self, group: str, reason: str) -> None:
        victim = next(iter(self._strangers[group]))
        self._counts.connection_refused(self.listener, group, reason)
        victim.release()
        victim.drop()

    def _on_timeout(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._counts.connection_refused(self.listener, slot.peer, "silent")
            slot.release()
            slot.drop()

    def _add_stranger(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._remove_stranger(slot)
            slot.stranger = True
            self._strangers.setdefault(slot.peer, OrderedDict())[slot] = None
            self._stranger_count += 1

    def _remove_stranger(self, slot: ConnectionSlot) -> None:
        peer_strangers = self._strangers.get(slot.peer)
        if peer_strangers is not None and slot in peer_strangers:
            del peer_strangers[slot]
            self._stranger_count -= 1
            if not peer_strangers:
                del self._strangers[slot.peer]

    def _release(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._slots.discard(slot)
            self._remove_stranger(slot)
            self._by_peer[slot.peer] -= 1
            if not self._by_peer[slot.peer]:
                del self._by_peer[slot.peer]
            self._counts.connection_closed(self.listener)
