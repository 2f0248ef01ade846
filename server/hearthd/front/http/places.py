"""Admission of connections: how many there may be, in all and of an address, and which one makes room for another.

A connection waits unless a request of an accepted caller is under way: within a TLS handshake, before and between
requests, while it asks for what everybody may have. The one that has waited longest is displaced by a newcomer, so a
client that sends its request at once gets through beside any number of silent or slow ones. Where none waits, a few
more are admitted for probes alone. Pure but for `displace`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from hearthd.front.connections.peers import group_of

RESERVE = 16
"""Connections beyond the limits, for probes."""


class Displaceable(Hashable, Protocol):
    def displace(self) -> None:
        """Closes the connection at once."""


C = TypeVar("C", bound=Displaceable)


class Places(Generic[C]):
    """Connections of one listener."""

    def __init__(self, most: int, most_of_one: int, reserve: int = RESERVE) -> None:
        """`most`: in all; `most_of_one`: of an address."""
        self._most, self._most_of_one, self._reserve = most, most_of_one, reserve
        self._all: dict[C, str] = {}
        self._of: dict[str, int] = {}
        self._waiting: dict[str, dict[C, None]] = {}
        self._order: dict[C, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, connection: C, address: str) -> tuple[C | None, bool]:
        """Admits a connection; it waits. Returns the one that it displaced, and whether it is one for probes only.
        Raises `OverflowError` where there is no place."""
        group = group_of(address)
        of_one = self._of.get(group, 0)
        if of_one < self._most_of_one and len(self._all) < self._most:
            self._keep(connection, group)
            return None, False
        waiting = self._waiting.get(group, {}) if of_one >= self._most_of_one else self._order
        displaced = next(iter(waiting), None)
        if displaced is not None:
            self.leave(displaced)
            displaced.displace()
        elif max(of_one - self._most_of_one, len(self._all) - self._most) >= self._reserve:
            raise OverflowError
        self._keep(connection, group)
        return displaced, displaced is None

    def displace(self) -> C | None:
        """Closes the connection that has waited longest, for its descriptor."""
        longest = next(iter(self._order), None)
        if longest is not None:
            self.leave(longest)
            longest.displace()
        return longest

    def waits(self, connection: C) -> None:
        """The connection may be displaced from now on, after all that wait already."""
        self.works(connection)
        group = self._all.get(connection)
        if group is not None:
            self._order[connection] = None
            self._waiting.setdefault(group, {})[connection] = None

    def works(self, connection: C) -> None:
        """The connection may not be displaced."""
        group = self._all.get(connection)
        if group is not None and self._order.pop(connection, True) is None:
            waiting = self._waiting[group]
            del waiting[connection]
            if not waiting:
                del self._waiting[group]

    def leave(self, connection: C) -> None:
        """The connection is closed. A second call does nothing."""
        self.works(connection)
        group = self._all.pop(connection, None)
        if group is not None:
            self._of[group] -= 1
            if not self._of[group]:
                del self._of[group]

    def _keep(self, connection: C, group: str) -> None:
        self._all[connection] = group
        self._of[group] = self._of.get(group, 0) + 1
        self.waits(connection)
