"""Launch replay cache: launches known byte for byte, which are issued again without checks.

A launch stays known until one of its handles changes.

A program that repeats itself sends the same records again; a program that passes a counter never does, and should not
pay for lookups. Therefore lookups pause after a number of misses.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

MAX_RECORDS = 1024
"""Most records that the cache holds."""

MAX_CREDIT = 256
"""Number of misses, net of hits, after which lookups pause."""

PAUSE = 64
"""Number of runs of records without lookups; the next run is looked up again."""


class ReplayCache(Generic[T]):
    """Values by launch record.

    The caller must call `forget` whenever a handle that a record may refer to is freed or fails.
    """

    __slots__ = ("_credit", "_pause", "entries")

    def __init__(self) -> None:
        self.entries: dict[bytes, T] = {}
        self._credit = MAX_CREDIT
        self._pause = 0

    def should_look_up(self) -> bool:
        """Returns True if the next run of records is to be looked up."""
        if self._pause:
            self._pause -= 1
            if not self._pause:
                self._credit = MAX_CREDIT // 4
        return not self._pause

    def report(self, hits: int, misses: int) -> None:
        """Records the hits and misses of one run."""
        self._credit = min(self._credit + hits - misses, MAX_CREDIT)
        if self._credit <= 0:
            self._pause = PAUSE
            self.entries.clear()

    def remember(self, record: bytes, value: T) -> None:
        """Stores the value of a record. A full cache is cleared first."""
        if len(self.entries) >= MAX_RECORDS:
            self.entries.clear()
        self.entries[record] = value

    def forget(self) -> None:
        """Removes all records; the pause of lookups is not affected."""
        if self.entries:
            self.entries.clear()
