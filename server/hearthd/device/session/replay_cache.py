"""Launches that came before, byte for byte: what repeats needs no second look until something it rests on goes away.

A program that repeats itself sends the same record again and again; one that passes a counter never does, and should
not pay for being looked up. So looking up is given up for a while where it finds nothing.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 1024
"""Records that are remembered."""

PATIENCE = 256
"""Records in vain before looking up is given up."""

PAUSE = 64
"""Runs of records without looking up; then it is tried again."""


class ReplayCache(Generic[T]):
    """What is known of records. `forget` whenever a handle that a record may name dies or goes bad."""

    __slots__ = ("_credit", "_pause", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, T] = {}
        self._credit = PATIENCE
        self._pause = 0

    def worth_it(self) -> bool:
        """Whether to look the next run of records up."""
        if self._pause:
            self._pause -= 1
            if not self._pause:
                self._credit = PATIENCE // 4
        return not self._pause

    def report(self, found: int, missed: int) -> None:
        """How a run went that was looked up."""
        self._credit = min(self._credit + found - missed, PATIENCE)
        if self._credit <= 0:
            self._pause = PAUSE
            self.known.clear()

    def remember(self, record: bytes, value: T) -> None:
        if len(self.known) >= MOST:
            self.known.clear()
        self.known[record] = value

    def forget(self) -> None:
        if self.known:
            self.known.clear()
