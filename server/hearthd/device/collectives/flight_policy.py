"""Operations launched on one communicator and not known to be done: in order of launch, each with its deadline.

Every rank receives the same order of launches, numbered from 1. An operation launched out of turn would be matched with
a different operation on its peers, so the numbers are kept here as well.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

T = TypeVar("T")

PROGRESS_S = 0.05
"""Shortest interval between two reports of progress, in seconds."""


class InFlightQueue(Generic[T]):
    """Operations in flight on one communicator. Times are seconds of one clock."""

    __slots__ = ("_deadlines", "_reported", "_reported_at", "done", "launched", "numbered")

    def __init__(self) -> None:
        self.numbered = 0
        """The highest number given to an operation so far."""
        self.launched = 0
        self.done = 0
        self._deadlines: dict[T, float] = {}
        """Deadlines by operation, in the order of launch."""
        self._reported = 0
        self._reported_at = -math.inf

    def __len__(self) -> int:
        return len(self._deadlines)

    def number(self, number: int) -> bool:
        """Records that the front has given an operation this number. False if the number was recorded before."""
        if number <= self.numbered:
            return False
        self.numbered = number
        return True

    def next(self, number: int) -> bool:
        """True if all operations before this number have been launched."""
        return number <= self.launched + 1

    def launch(self, operation: T, deadline: float) -> None:
        """Adds a launched operation, which must be done by `deadline`."""
        self.launched += 1
        self._deadlines[operation] = deadline

    def finish(self, operation: T) -> None:
        """Counts an operation as done, if it is in flight."""
        if self._deadlines.pop(operation, None) is not None:
            self.done += 1

    def overdue(self, now: float) -> T | None:
        """Returns the first operation, in the order of launch, whose deadline has passed; None if there is none."""
        return next((operation for operation, deadline in self._deadlines.items() if deadline <= now), None)

    def pop_all(self) -> list[T]:
        """Removes and returns all operations in flight, in the order of their launch."""
        operations = list(self._deadlines)
        self._deadlines.clear()
        return operations

    def progress(self, now: float, *, at_once: bool = False) -> int | None:
        """Returns the number of operations that are done if it must be reported now, otherwise None.

        `at_once`: regardless of the time since the last report.
        """
        if self.done == self._reported or (now < self._reported_at + PROGRESS_S and not at_once):
            return None
        self._reported, self._reported_at = self.done, now
        return self.done

    def progress_at(self) -> float:
        """Returns the time of the next report; infinity if no operation has ended since the last one."""
        return self._reported_at + PROGRESS_S if self.done != self._reported else math.inf
