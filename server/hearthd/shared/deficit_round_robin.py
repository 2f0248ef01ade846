"""Deficit round robin: selects the next user of a shared resource, by weights. Pure.

Shared code, like `hearthd.shared.device_spec`: it schedules the sessions of a device process, and the device processes
of a device.

The cost of a turn is known only at its end, so costs are charged afterwards and credit may become negative ("surplus
round robin"). A flow with credit left continues; when no waiting flow has credit, a new round credits all flows. Flows
belong to groups, and groups to priority classes: a tenant's weight is divided among its sessions, and a more urgent
class precedes the others, each of which is guaranteed a small part (`GUARANTEED_FRACTION`).

M. Shreedhar, G. Varghese: Efficient Fair Queuing using Deficit Round Robin, 1995. Costs, credit and quantum have the
same unit, which the caller chooses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

GUARANTEED_FRACTION = 0.05
"""Fraction of the use of more urgent classes that is guaranteed to each class below them."""


class _Entry:
    __slots__ = ("credit", "weight")

    def __init__(self, weight: float) -> None:
        self.credit = 0.0
        self.weight = weight


class DeficitRoundRobin(Generic[K]):
    """Deficit round robin over one level. `quantum` is the credit that an entry of average weight gets in each round.

    An entry that leaves the queue keeps its credit or debt, until rounds have raised its credit to that of a new entry.
    """

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._entries: dict[K, _Entry] = {}
        self._order: deque[K] = deque()  # keys that wait for a turn; the first one has the turn
        self._waiting: set[K] = set()
        self._weights = 0.0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def enter(self, key: K, weight: float = 1.0) -> None:
        """Queues the flow for a turn; `weight` replaces an earlier weight."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(weight)
            self._weights += weight
            entry.credit = self._share(entry)
        elif entry.weight != weight:
            self._weights += weight - entry.weight
            entry.weight = weight
        if key not in self._waiting:
            self._waiting.add(key)
            self._order.append(key)

    def leave(self, key: K) -> None:
        """Removes the flow from the queue, and keeps its credit or debt."""
        if key in self._waiting:
            self._waiting.discard(key)
            self._order.remove(key)

    def forget(self, key: K) -> None:
        """Removes the flow with its credit or debt."""
        self.leave(key)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weights -= entry.weight
            if not self._entries:
                self._weights = 0.0

    def credit(self, key: K) -> float:
        """Returns the credit of the flow; infinity for an unknown flow, or if no other flow waits."""
        entry = self._entries.get(key)
        if entry is None or not self._waiting or self._waiting == {key}:
            return float("inf")
        return entry.credit

    def charge(self, key: K, cost: float) -> None:
        """Subtracts `cost` from the flow's credit."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.credit -= cost

    def turn(self) -> K | None:
        """Returns the flow that has the turn; None if no flow waits.

        The same flow is returned until it has used its credit or leaves.
        """
        if not self._order:
            return None
        for _ in range(len(self._order)):
            if self._entries[self._order[0]].credit > 0:
                return self._order[0]
            self._order.rotate(-1)
        self._order.rotate(-1)  # moves the flow that had the last turn to the end
        self._replenish()
        while self._entries[self._order[0]].credit <= 0:
            self._order.rotate(-1)
        return self._order[0]

    def _replenish(self) -> None:
        """Credits all flows with as many rounds as are necessary until a waiting flow has credit."""
        waiting = [self._entries[key] for key in self._order]
        rounds = min(1 + -entry.credit // self._share(entry) for entry in waiting)
        expired = []
        for key, entry in self._entries.items():
            share = self._share(entry)
            entry.credit += rounds * share
            if key not in self._waiting and entry.credit >= share:
                expired.append(key)
        for key in expired:
            self.forget(key)
        if all(entry.credit <= 0 for entry in waiting):  # possible only by rounding errors, with extremely large debts
            max(waiting, key=lambda entry: entry.credit).credit = self._quantum

    def _share(self, entry: _Entry) -> float:
        return self._quantum * len(self._entries) * entry.weight / self._weights


class _Class(Generic[K]):
    """The groups of one priority."""

    __slots__ = ("entitlement", "groups", "rings")

    def __init__(self, quantum: float) -> None:
        self.groups: DeficitRoundRobin[str] = DeficitRoundRobin(quantum)
        self.rings: dict[str, DeficitRoundRobin[K]] = {}
        self.entitlement = 0.0  # cost to which the class is entitled although more urgent classes wait


class HierarchicalRoundRobin(Generic[K]):
    """Flows in groups, and groups in priority classes; see the module.

    A lower `priority` is more urgent, as for CUDA streams.
    """

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._waiting: set[K] = set()
        self._classes: dict[int, _Class[K]] = {}
        self._locations: dict[K, tuple[int, str]] = {}

    def __len__(self) -> int:
        """Returns the number of flows that wait for a turn."""
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def enter(self, key: K, group: str = "", weight: float = 1.0, priority: int = 0) -> None:
        """Queues the flow for a turn.

        `weight` is that of the flow's group; the last value given for the group applies.
        """
        location = (priority, group)
        if self._locations.get(key, location) != location:
            self.forget(key)
        self._locations[key] = location
        self._waiting.add(key)
        priority_class = self._classes.setdefault(priority, _Class(self._quantum))
        priority_class.groups.enter(group, weight)
        priority_class.rings.setdefault(group, DeficitRoundRobin(self._quantum)).enter(key)

    def leave(self, key: K) -> None:
        """Removes the flow from the queue; its past use still counts if it returns soon."""
        location = self._locations.get(key)
        if location is None:
            return
        self._waiting.discard(key)
        priority_class = self._classes[location[0]]
        ring = priority_class.rings[location[1]]
        ring.leave(key)
        if not ring:
            priority_class.groups.leave(location[1])
        if not priority_class.groups:
            priority_class.entitlement = min(priority_class.entitlement, 0.0)

    def forget(self, key: K) -> None:
        """Removes the flow, with its credit or debt."""
        self.leave(key)
        location = self._locations.pop(key, None)
        if location is not None:
            self._classes[location[0]].rings[location[1]].forget(key)
            if location not in self._locations.values():
                del self._classes[location[0]].rings[location[1]]  # a debt remains with the group

    def charge(self, key: K, cost: float) -> None:
        """Subtracts `cost` from the credit of the flow and of its group, whether or not the flow waits."""
        location = self._locations.get(key)
        if location is None:
            return
        priority, group = location
        priority_class = self._classes[priority]
        priority_class.groups.charge(group, cost)
        priority_class.rings[group].charge(key, cost)
        if len(self._classes) > 1:
            for other_priority, other_class in self._classes.items():
                if other_priority > priority and other_class.groups:
                    other_class.entitlement += GUARANTEED_FRACTION * cost
            if any(
                other_priority < priority and other_class.groups
                for other_priority, other_class in self._classes.items()
            ):
                priority_class.entitlement -= cost

    def turn(self) -> K | None:
        """Returns the flow that has the turn; None if no flow waits."""
        priority_class = self._class()
        group = priority_class.groups.turn() if priority_class is not None else None
        return priority_class.rings[group].turn() if priority_class is not None and group is not None else None

    def credit(self, key: K) -> float:
        """Returns the credit that the flow may use before other flows have a turn; infinity if no other flow waits.

        Returns 0 if a flow of a more urgent class waits, and one quantum for an unknown flow.
        """
        location = self._locations.get(key)
        if location is None:
            return self._quantum
        priority, group = location
        if any(
            other_priority < priority and other_class.groups for other_priority, other_class in self._classes.items()
        ):
            return 0.0
        priority_class = self._classes[priority]
        return min(priority_class.groups.credit(group), priority_class.rings[group].credit(key))

    def _class(self) -> _Class[K] | None:
        waiting = [priority for priority, priority_class in self._classes.items() if priority_class.groups]
        if not waiting:
            return None
        if len(waiting) > 1:
            entitled = max(
                (self._classes[priority] for priority in waiting), key=lambda priority_class: priority_class.entitlement
            )
            if entitled.entitlement >= self._quantum:
                return entitled
        return self._classes[min(waiting)]
