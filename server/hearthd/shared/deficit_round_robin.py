"""Deficit round robin: selects the next user of a shared resource, by weights. Pure.

Neutral ground, as `hearthd.shared.device_spec`: sessions share a device process by it, device processes a device.

The cost of a turn is known only at its end, so costs are charged afterwards and credit may go below zero ("surplus
round robin"). A flow with credit left continues; when no waiting flow has any, a round begins and credits all. Flows
are in groups and groups in classes: a tenant's weight is divided among its sessions, and a more urgent class goes
before all others, which keep a small part.

M. Shreedhar, G. Varghese: Efficient Fair Queuing using Deficit Round Robin, 1995. Costs, credit and quantum are in one
unit, of the caller's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LEAST = 0.05
"""The part of what more urgent classes use that each class below them is owed."""


class _Entry:
    __slots__ = ("credit", "weight")

    def __init__(self, weight: float) -> None:
        self.credit = 0.0
        self.weight = weight


class DeficitRoundRobin(Generic[K]):
    """Deficit round robin over one level. `quantum`: what an entry of average weight gets each round.

    An entry that leaves keeps its credit, or its debt, until rounds have made it what a newcomer gets.
    """

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._entries: dict[K, _Entry] = {}
        self._order: deque[K] = deque()  # of those that want; the first is the one whose turn it is
        self._wanting: set[K] = set()
        self._weights = 0.0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: K) -> bool:
        return key in self._wanting

    def enter(self, key: K, weight: float = 1.0) -> None:
        """Queues the flow for a turn."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(weight)
            self._weights += weight
            entry.credit = self._share(entry)
        elif entry.weight != weight:
            self._weights += weight - entry.weight
            entry.weight = weight
        if key not in self._wanting:
            self._wanting.add(key)
            self._order.append(key)

    def leave(self, key: K) -> None:
        """Removes the flow from the queue for now."""
        if key in self._wanting:
            self._wanting.discard(key)
            self._order.remove(key)

    def forget(self, key: K) -> None:
        """Removes the flow for good."""
        self.leave(key)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weights -= entry.weight
            if not self._entries:
                self._weights = 0.0

    def credit(self, key: K) -> float:
        """Returns the credit of the flow; infinite for an unknown flow, or where no other flow waits."""
        entry = self._entries.get(key)
        if entry is None or not self._wanting or self._wanting == {key}:
            return float("inf")
        return entry.credit

    def charge(self, key: K, cost: float) -> None:
        """Charges the flow with `cost`."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.credit -= cost

    def turn(self) -> K | None:
        """Returns the flow with the turn; None where none waits. The same one until its credit is used up, or it
        leaves."""
        if not self._order:
            return None
        for _ in range(len(self._order)):
            if self._entries[self._order[0]].credit > 0:
                return self._order[0]
            self._order.rotate(-1)
        self._order.rotate(-1)  # behind the one that had the last turn
        self._replenish()
        while self._entries[self._order[0]].credit <= 0:
            self._order.rotate(-1)
        return self._order[0]

    def _replenish(self) -> None:
        """Credits all flows with as many rounds as it takes until a waiting flow has credit."""
        wanting = [self._entries[key] for key in self._order]
        rounds = min(1 + -entry.credit // self._share(entry) for entry in wanting)
        rested = []
        for key, entry in self._entries.items():
            share = self._share(entry)
            entry.credit += rounds * share
            if key not in self._wanting and entry.credit >= share:
                rested.append(key)
        for key in rested:
            self.forget(key)
        if all(entry.credit <= 0 for entry in wanting):  # rounding, of debts beyond all measure
            max(wanting, key=lambda entry: entry.credit).credit = self._quantum

    def _share(self, entry: _Entry) -> float:
        return self._quantum * len(self._entries) * entry.weight / self._weights


class _Class(Generic[K]):
    """Groups of one urgency."""

    __slots__ = ("groups", "owed", "rings")

    def __init__(self, quantum: float) -> None:
        self.groups: DeficitRoundRobin[str] = DeficitRoundRobin(quantum)
        self.rings: dict[str, DeficitRoundRobin[K]] = {}
        self.owed = 0.0


class HierarchicalRoundRobin(Generic[K]):
    """Flows in groups in classes; see the module. A lower `priority` is more urgent, as for CUDA streams."""

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._wanting: set[K] = set()
        self._classes: dict[int, _Class[K]] = {}
        self._places: dict[K, tuple[int, str]] = {}

    def __len__(self) -> int:
        """Returns the number of flows that wait for a turn."""
        return len(self._wanting)

    def __contains__(self, key: K) -> bool:
        return key in self._wanting

    def enter(self, key: K, group: str = "", weight: float = 1.0, priority: int = 0) -> None:
        """The flow wants a turn. `weight` is its group's: the last one named counts."""
        place = (priority, group)
        if self._places.get(key, place) != place:
            self.forget(key)
        self._places[key] = place
        self._wanting.add(key)
        of = self._classes.setdefault(priority, _Class(self._quantum))
        of.groups.enter(group, weight)
        of.rings.setdefault(group, DeficitRoundRobin(self._quantum)).enter(key)

    def leave(self, key: K) -> None:
        """Removes the flow from the queue for now; its past use still counts when it returns soon."""
        place = self._places.get(key)
        if place is None:
            return
        self._wanting.discard(key)
        of = self._classes[place[0]]
        ring = of.rings[place[1]]
        ring.leave(key)
        if not ring:
            of.groups.leave(place[1])
        if not of.groups:
            of.owed = min(of.owed, 0.0)

    def forget(self, key: K) -> None:
        """Removes the flow for good."""
        self.leave(key)
        place = self._places.pop(key, None)
        if place is not None:
            self._classes[place[0]].rings[place[1]].forget(key)
            if place not in self._places.values():
                del self._classes[place[0]].rings[place[1]]  # its debt, if any, is the group's, and stays

    def charge(self, key: K, cost: float) -> None:
        """Charges the flow with `cost`, whether or not it waits."""
        place = self._places.get(key)
        if place is None:
            return
        priority, group = place
        of = self._classes[priority]
        of.groups.charge(group, cost)
        of.rings[group].charge(key, cost)
        if len(self._classes) > 1:
            for below, other in self._classes.items():
                if below > priority and other.groups:
                    other.owed += LEAST * cost
            if any(above < priority and other.groups for above, other in self._classes.items()):
                of.owed -= cost

    def turn(self) -> K | None:
        """Returns the flow with the turn; None where none waits."""
        of = self._class()
        group = of.groups.turn() if of is not None else None
        return of.rings[group].turn() if of is not None and group is not None else None

    def credit(self, key: K) -> float:
        """Returns the credit that the flow may use before others have a turn; infinite where no other flow waits.

        Nothing where a flow of a more urgent class waits; a newcomer has some.
        """
        place = self._places.get(key)
        if place is None:
            return self._quantum
        priority, group = place
        if any(above < priority and other.groups for above, other in self._classes.items()):
            return 0.0
        of = self._classes[priority]
        return min(of.groups.credit(group), of.rings[group].credit(key))

    def _class(self) -> _Class[K] | None:
        wanting = [priority for priority, of in self._classes.items() if of.groups]
        if not wanting:
            return None
        if len(wanting) > 1:
            owed = max((self._classes[priority] for priority in wanting), key=lambda of: of.owed)
            if owed.owed >= self._quantum:
                return owed
        return self._classes[min(wanting)]
