"""Compile queue: selects the next compile in turn among the owners, so that a flood of one does not delay the others.

`slots` compiles run at once, of any owner. An owner without a running compile may have one more beyond those, up to
twice as many in all: endless compiles of one session do not delay another session's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class CompileQueue(Generic[T]):
    """Compiles that wait and run, by owner. Not thread-safe: its user has a lock."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()
        """Waiting compiles by owner; the first owner has the next turn."""
        self._running: dict[Hashable, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def most(self) -> int:
        """Largest number of compiles that may run at once."""
        return 2 * self._slots

    def put(self, owner: Hashable, item: T) -> None:
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """The next item that may run, which counts as running from now on; None where none may."""
        for owner in list(self._waiting):
            beyond = self._total >= self._slots
            if self._total >= self.most or (beyond and self._running.get(owner)):
                continue
            items = self._waiting[owner]
            item = items.popleft()
            if items:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            self._running[owner] = self._running.get(owner, 0) + 1
            self._total += 1
            return owner, item
        return None

    def done(self, owner: Hashable) -> None:
        """An item of the owner has ended."""
        self._total -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def drop(self, item: T) -> bool:
        """Takes an item out again; whether it was still waiting."""
        for owner, items in self._waiting.items():
            if item in items:
                items.remove(item)
                if not items:
                    del self._waiting[owner]
                return True
        return False
