"""Limits on the connections of one listener: in all, of strangers, and of strangers per peer. Pure but for deadlines,
which use the running event loop.

Every listener that accepts by itself has one `ConnectionLimiter`. An asyncio protocol uses it like this:

>>> class Protocol(asyncio.Protocol):
...     def connection_made(self, transport):
...         self._slot = limiter.admit(peer_name(transport), transport.abort)
...         if self._slot is None:
...             transport.abort()  # refused, counted and logged already
...             return
...         self._slot.expect()  # a credential (or a whole request) within `limiter.timeout`, else `transport.abort`
...     def request_complete(self):
...         self._slot.prove()  # an accepted credential: no stranger any more, no deadline
...     def connection_lost(self, exc):
...         if self._slot is not None:
...             self._slot.release()

A listener without credentials (HTTP probes) never calls `prove`: all its connections stay strangers. It calls `expect`
again after each request, so that `limiter.timeout` bounds the time between two requests.

A stranger beyond a limit takes the place of another one: the oldest of the peer that has the most. So a peer that holds
as many connections as it may shuts out itself, and a probe or a new tenant still gets in.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from hearthd.front.connections.peers import group_of


class ConnectionObserver(Protocol):
    """Counts connections, and logs at a bounded rate."""

    def connection_opened(self, listener: str) -> None: ...

    def connection_closed(self, listener: str) -> None: ...

    def connection_refused(self, listener: str, peer: str, reason: str) -> None:
        """`reason`: full, strangers, address, evicted, silent, flood, penalty."""


class Slot:
    """One admitted connection."""

    __slots__ = ("_drop", "_limiter", "_timer", "peer", "stranger")

    def __init__(self, limiter: ConnectionLimiter, peer: str, drop: Callable[[], None]) -> None:
        self.peer = peer
        """The group that limits count: an address, an IPv6 network, a user."""
        self.stranger = True
        self._limiter = limiter
        self._drop = drop
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float | None = None) -> None:
        """Drops the connection unless `prove`, `release` or a further `expect` comes within `seconds` (default: the
        limiter's timeout)."""
        self._cancel()
        wait = self._limiter.timeout if seconds is None else seconds
        self._timer = asyncio.get_running_loop().call_later(wait, self._limiter._overdue, self)

    def prove(self) -> None:
        """Ends the connection's life as a stranger: it has shown an accepted credential."""
        self._cancel()
        if self.stranger:
            self._limiter._forget_stranger(self)
            self.stranger = False

    def release(self) -> None:
        """The connection is closed. A second call does nothing."""
        self._cancel()
        self._limiter._release(self)

    def drop(self) -> None:
        """Closes the connection."""
        self._drop()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ConnectionLimiter:
    """The connections of one listener."""

    def __init__(
        self,
        listener: str,
        observer: ConnectionObserver,
        *,
        most: int,
        most_strangers: int,
        most_per_peer: int,
        timeout: float,
    ) -> None:
        """`listener`: its name in metrics and logs. `timeout`: seconds that `Slot.expect` allows."""
        self.listener = listener
        self.most, self.most_strangers, self.most_per_peer = most, most_strangers, most_per_peer
        self.timeout = timeout
        self._observer = observer
        self._slots: set[Slot] = set()
        self._strangers: dict[str, OrderedDict[Slot, None]] = {}
        """By peer, oldest first."""
        self._count = 0

    def __len__(self) -> int:
        """Open connections."""
        return len(self._slots)

    @property
    def strangers(self) -> int:
        return self._count

    def admit(self, peer: str, drop: Callable[[], None]) -> Slot | None:
        """A slot for a new connection; None where it is to be closed at once. May drop another stranger in its favour.

        Args:
            peer: an IP address, or `uid:N` on a Unix socket.
            drop: closes the connection; called at most once, and never from `admit` for the connection itself.
        """
        group = group_of(peer)
        if len(self._strangers.get(group, ())) >= self.most_per_peer:
            self._evict(group, "address")
        elif self._count >= self.most_strangers or len(self._slots) >= self.most:
            if not self._count:
                self._observer.connection_refused(self.listener, peer, "full")
                return None
            self._evict(max(self._strangers, key=lambda each: len(self._strangers[each])), "strangers")
        slot = Slot(self, group, drop)
        self._slots.add(slot)
        self._strangers.setdefault(group, OrderedDict())[slot] = None
        self._count += 1
        self._observer.connection_opened(self.listener)
        return slot

    def _evict(self, group: str, reason: str) -> None:
        victim = next(iter(self._strangers[group]))
        self._observer.connection_refused(self.listener, group, reason)
        victim.release()
        victim.drop()

    def _overdue(self, slot: Slot) -> None:
        if slot in self._slots:
            self._observer.connection_refused(self.listener, slot.peer, "silent")
            slot.release()
            slot.drop()

    def _forget_stranger(self, slot: Slot) -> None:
        own = self._strangers.get(slot.peer)
        if own is not None and slot in own:
            del own[slot]
            self._count -= 1
            if not own:
                del self._strangers[slot.peer]

    def _release(self, slot: Slot) -> None:
        if slot in self._slots:
            self._slots.discard(slot)
            self._forget_stranger(slot)
            self._observer.connection_closed(self.listener)
