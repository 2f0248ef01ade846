"""The order of complete operations: an operation may have to wait until others have been launched.

A rank presents several operations in advance, each with the operations that must run before it on that rank. An
operation that is complete, but ordered after another one on some rank, could not start there yet. If it were launched
now, it would block the operations queued after it on every rank. It is therefore held until all operations before it
have been launched or have failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hearthd.front.collectives.match import MatchKey


class CollectiveOrder:
    """The order of operations, which are identified by their keys. Pure."""

    def __init__(self) -> None:
        self._open: dict[MatchKey, set[MatchKey]] = {}
        """Operations that have neither been launched nor failed, each with the operations that wait for it."""
        self._held: dict[MatchKey, set[MatchKey]] = {}
        """Held operations, each with the operations for which it waits."""
        self.released: deque[MatchKey] = deque()
        """Operations that are no longer held, in order. The caller launches them."""

    def __len__(self) -> int:
        return len(self._open)

    def is_held(self, key: MatchKey) -> bool:
        """Returns True if the operation is complete and waits for operations before it."""
        return key in self._held

    def open(self, key: MatchKey) -> None:
        """Adds an operation that a rank has presented."""
        self._open.setdefault(key, set())

    def hold(self, key: MatchKey, predecessors: Iterable[MatchKey]) -> bool:
        """Marks an open operation as complete.

        Returns True if it is held, because operations of `predecessors` must be launched first.
        """
        blockers = {blocker for blocker in predecessors if blocker in self._open and blocker != key}
        if not blockers:
            return False
        self._held[key] = blockers
        for blocker in blockers:
            self._open[blocker].add(key)
        return True

    def find_cycle(self, key: MatchKey) -> list[MatchKey]:
        """Returns the operations that wait for each other in a cycle that contains the held operation `key`.

        Such a cycle exists if the ranks have the operations in different orders. Empty: there is none.
        """
        blockers = self._all_blockers(key)
        return [blocker for blocker in blockers if key in self._all_blockers(blocker)] if key in blockers else []

    def close(self, key: MatchKey) -> None:
        """Removes an operation that was launched or has failed."""
        for blocker in self._held.pop(key, ()):
            self._open[blocker].discard(key)
        for successor in self._open.pop(key, ()):
            blockers = self._held[successor]
            blockers.discard(key)
            if not blockers:
                del self._held[successor]
                self.released.append(successor)

    def blockers(self, key: MatchKey) -> set[MatchKey]:
        """Returns the operations for which a held operation waits."""
        return set(self._held.get(key, ()))

    def _all_blockers(self, key: MatchKey) -> dict[MatchKey, None]:
        """Returns the operations for which `key` waits, directly or indirectly."""
        blockers: dict[MatchKey, None] = {}
        unvisited = list(self._held.get(key, ()))
        while unvisited:
            blocker = unvisited.pop()
            if blocker not in blockers:
                blockers[blocker] = None
                unvisited.extend(self._held.get(blocker, ()))
        return blockers
