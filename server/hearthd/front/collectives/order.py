"""The order of complete operations that have to wait for others to go first.

A rank presents a row of operations at once, each with those that it stands behind there. One that is complete, but
stands behind another on some rank, could not start there if it were released now, and would hold up whatever comes
behind it on every rank: it goes when all that it stands behind have gone, or have failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K")


class CollectiveOrder(Generic[K]):
    """Pure; operations are named by their keys."""

    def __init__(self) -> None:
        self._open: dict[K, set[K]] = {}
        """Operations that have neither gone nor failed, and those that are held behind each."""
        self._held: dict[K, set[K]] = {}
        """Held operations, and those that each is held behind."""
        self.released: deque[K] = deque()
        """Operations that are held no longer, in order; the caller lets them go."""

    def __len__(self) -> int:
        return len(self._open)

    def held(self, key: K) -> bool:
        return key in self._held

    def open(self, key: K) -> None:
        """A rank has presented it."""
        self._open.setdefault(key, set())

    def hold(self, key: K, behind: Iterable[K]) -> bool:
        """An open operation is complete: whether it has to wait for others of these."""
        waits = {each for each in behind if each in self._open and each != key}
        if not waits:
            return False
        self._held[key] = waits
        for each in waits:
            self._open[each].add(key)
        return True

    def circle(self, key: K) -> list[K]:
        """A held operation and those that it waits for while they wait for it: the ranks have them in different
        orders. Empty where there are none."""
        ahead = self._ahead(key)
        return [each for each in ahead if key in self._ahead(each)] if key in ahead else []

    def close(self, key: K) -> None:
        """Removes an operation that has gone, or failed."""
        for each in self._held.pop(key, ()):
            self._open[each].discard(key)
        for each in self._open.pop(key, ()):
            left = self._held[each]
            left.discard(key)
            if not left:
                del self._held[each]
                self.released.append(each)

    def ahead(self, key: K) -> set[K]:
        """Returns the operations that a held one waits for."""
        return set(self._held.get(key, ()))

    def _ahead(self, key: K) -> dict[K, None]:
        """These, and those that they wait for, and so on."""
        found: dict[K, None] = {}
        left = list(self._held.get(key, ()))
        while left:
            each = left.pop()
            if each not in found:
                found[each] = None
                left.extend(self._held.get(each, ()))
        return found
