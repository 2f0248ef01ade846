"""Limits on the connections of one listener: in total, of strangers, and of strangers of one peer.

A stranger is a connection that has shown no accepted credential. Pure, except for time limits, which use the running
event loop. Every listener that accepts connections itself has one `ConnectionLimiter`. An asyncio protocol uses it so:

>>> class Protocol(asyncio.Protocol):
...     def connection_made(self, transport):
...         self._slot = limiter.admit(peer_name(transport), transport.abort)
...         if self._slot is None:
...             transport.abort()  # refused, counted and logged already
...             return
...         self._slot.expect()  # a credential or a request within `limiter.timeout`, else `transport.abort`
...     def request_complete(self):
...         self._slot.prove()  # an accepted credential: no longer a stranger, no time limit
...     def connection_lost(self, exc):
...         if self._slot is not None:
...             self._slot.release()

A listener whose connections show a credential with each request (HTTP) calls `mark_authenticated` while an accepted
request is under way and `wait` afterwards: between two requests the connection is a stranger again, and the youngest
one.

A stranger in excess of a limit displaces another stranger: the oldest of the peer that has most strangers. A peer that
opens as many connections as it may thus only displaces its own, and a probe or a new tenant can still connect. If there
is no stranger to displace, a few more connections are admitted, for probes only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hearthd.front.connections.peers import group_of


class ConnectionObserver(Protocol):
    """Counts connections, and logs at a bounded rate."""

    def connection_opened(self, listener: str) -> None:
        """Counts an admitted connection. `connection_closed` follows once."""
        ...

    def connection_closed(self, listener: str) -> None:
        """Counts the end of a connection that was counted as opened, including one that was evicted."""
        ...

    def connection_refused(self, listener: str, peer: str, reason: str) -> None:
        """Counts a connection that was refused or closed.

        `reason`: full, strangers, address, evicted, silent, flood or penalty.
        """

    def connection_held(self, listener: str, peer: str) -> None:
        """Counts a connection of a penalized peer whose data is held back."""


class ConnectionSlot:
    """The slot of an open connection."""

    __slots__ = ("_drop", "_limiter", "_timer", "peer", "reserved", "stranger")

    def __init__(self, limiter: ConnectionLimiter, peer: str, drop: Callable[[], None], reserved: bool = False) -> None:
        self.peer = peer
        """The group that limits count: an address, an IPv6 network or a user."""
        self.stranger = True
        self.reserved = reserved
        """True if the connection exceeds the limits and was admitted because it may be a probe."""
        self._limiter = limiter
        self._drop = drop
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float | None = None) -> None:
        """Drops the connection unless `mark_authenticated`, `release` or another `expect` is called in time.

        The time is `seconds`; None: the limiter's timeout.
        """
        self._cancel()
        wait = self._limiter.timeout if seconds is None else seconds
        self._timer = asyncio.get_running_loop().call_later(wait, self._limiter._overdue, self)

    def mark_authenticated(self) -> None:
        """Notes that the connection has shown an accepted credential. It is no longer a stranger."""
        self._cancel()
        if self.stranger:
            self._limiter._forget_stranger(self)
            self.stranger = False

    def wait(self) -> None:
        """Makes the connection a stranger again, and the youngest one."""
        self._limiter._enter_stranger(self)

    def release(self) -> None:
        """Releases the slot of a closed connection. A second call does nothing."""
        self._cancel()
        self._limiter._release(self)

    def drop(self) -> None:
        """Closes the connection."""
        self._drop()

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
        observer: ConnectionObserver,
        *,
        most: int,
        most_strangers: int,
        most_per_peer: int,
        timeout: float,
        most_of_peer: int | None = None,
        reserve: int = 0,
    ) -> None:
        """Creates a limiter. All numbers are numbers of connections.

        Args:
            listener: name of the listener in metrics and logs.
            observer: counts and logs connections.
            most: maximum in total.
            most_strangers: maximum of strangers in total.
            most_per_peer: maximum of strangers of one peer.
            timeout: default time limit of `ConnectionSlot.expect`, in seconds.
            most_of_peer: maximum of one peer, including authenticated connections; None: no limit.
            reserve: connections for probes beyond `most` and `most_of_peer`.
        """
        self.listener = listener
        self.most, self.most_strangers, self.most_per_peer = most, most_strangers, most_per_peer
        self.most_of_peer, self.reserve = most_of_peer, reserve
        self.timeout = timeout
        self._observer = observer
        self._slots: set[ConnectionSlot] = set()
        self._strangers: dict[str, OrderedDict[ConnectionSlot, None]] = {}
        """Slots of strangers by peer, oldest first."""
        self._count = 0
        self._of: Counter[str] = Counter()
        """Number of open connections, by peer."""

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._slots)

    @property
    def strangers(self) -> int:
        """Number of open connections that have shown no accepted credential."""
        return self._count

    def inspect(self) -> LimiterView:
        """Returns the open connections, and the counts to which the limits apply."""
        strangers = {peer: len(slots) for peer, slots in self._strangers.items()}
        return LimiterView(frozenset(self._slots), dict(self._of), strangers)

    def admit(self, peer: str, drop: Callable[[], None]) -> ConnectionSlot | None:
        """Returns a slot for a new connection; None if the connection has to be closed at once.

        May drop a stranger to make room.

        Args:
            peer: an IP address, or `uid:N` on a Unix socket.
            drop: closes the connection; called at most once, and never from `admit` for the connection itself.
        """
        group = group_of(peer)
        own = len(self._strangers.get(group, ()))
        crowded = self.most_of_peer is not None and self._of[group] >= self.most_of_peer
        reserved = False
        if own >= self.most_per_peer or (crowded and own):
            self._evict(group, "address")
        elif not crowded and self._count and (self._count >= self.most_strangers or len(self._slots) >= self.most):
            self.evict("strangers")
        elif crowded or len(self._slots) >= self.most:
            reserved = self._room_for_probes(group)
            if not reserved:
                self._observer.connection_refused(self.listener, peer, "address" if crowded else "full")
                return None
        slot = ConnectionSlot(self, group, drop, reserved)
        self._slots.add(slot)
        self._of[group] += 1
        self._enter_stranger(slot)
        self._observer.connection_opened(self.listener)
        return slot

    def _room_for_probes(self, group: str) -> bool:
        beyond = len(self._slots) - self.most
        if self.most_of_peer is not None:
            beyond = max(beyond, self._of[group] - self.most_of_peer)
        return beyond < self.reserve

    def evict(self, reason: str) -> None:
        """Drops the oldest stranger of the peer that has most strangers, if there is one."""
        if self._strangers:
            self._evict(max(self._strangers, key=lambda each: len(self._strangers[each])), reason)

    def _evict(self, group: str, reason: str) -> None:
        victim = next(iter(self._strangers[group]))
        self._observer.connection_refused(self.listener, group, reason)
        victim.release()
        victim.drop()

    def _overdue(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._observer.connection_refused(self.listener, slot.peer, "silent")
            slot.release()
            slot.drop()

    def _enter_stranger(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._forget_stranger(slot)
            slot.stranger = True
            self._strangers.setdefault(slot.peer, OrderedDict())[slot] = None
            self._count += 1

    def _forget_stranger(self, slot: ConnectionSlot) -> None:
        own = self._strangers.get(slot.peer)
        if own is not None and slot in own:
            del own[slot]
            self._count -= 1
            if not own:
                del self._strangers[slot.peer]

    def _release(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._slots.discard(slot)
            self._forget_stranger(slot)
            self._of[slot.peer] -= 1
            if not self._of[slot.peer]:
                del self._of[slot.peer]
            self._observer.connection_closed(self.listener)
