"""Compile queue: selects the next compile in round-robin order of the owners.

Many compiles of one owner therefore do not delay the others. `slots` compiles run at the same time, of any owner. An
owner without a running compile may start one beyond that number, up to twice as many in total: endless compiles of one
session do not delay another session's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class CompileQueue(Generic[T]):
    """Queued and running compiles by owner. Not thread-safe: callers hold a lock."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()
        """Queued compiles by owner; the first owner has the next turn."""
        self._running: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def max_running(self) -> int:
        """Largest number of compiles that may run at the same time."""
        return 2 * self._slots

    def put(self, owner: Hashable, item: T) -> None:
        """Queues an item after those of the same owner. It is not counted as running before `next_item` returns it."""
        self._waiting.setdefault(owner, deque()).append(item)

    def next_item(self) -> tuple[Hashable, T] | None:
        """Returns the next (owner, item) that may run, and counts it as running; None if none may."""
        total = sum(self._running.values())
        for owner in list(self._waiting):
            if total >= self.max_running or (total >= self._slots and self._running.get(owner)):
                continue
            items = self._waiting[owner]
            item = items.popleft()
            if items:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            self._running[owner] = self._running.get(owner, 0) + 1
            return owner, item
        return None

    def done(self, owner: Hashable) -> None:
        """Records that an item of the owner has ended."""
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def drop(self, item: T) -> bool:
        """Removes an item from the queue; returns True if it was still queued."""
        for owner, items in self._waiting.items():
            if item in items:
                items.remove(item)
                if not items:
                    del self._waiting[owner]
                return True
        return False
