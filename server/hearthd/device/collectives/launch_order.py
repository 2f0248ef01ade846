"""Launch order of the collectives of one track: the order in which the front releases them.

A track runs one after the other. Were one launched ahead of another that its peers have launched before it, each side
would wait for the other; so all devices keep to the one order in which the front tells them, whatever communicators
the operations are of.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

MOST_LAUNCHED = 256
"""Operations, those of a batch counted one by one, that are launched on a track and not known to be done. The driver
makes who gives a few tracks a thousand or so wait until some are done, and nobody may wait here for what waits for
peers. What goes beyond waits here: its peers come to it in the same order, so that the first can always be done."""


class WeightedOperation(Protocol):
    """An operation, single or a batch."""

    @property
    def weight(self) -> int: ...


P = TypeVar("P", bound=WeightedOperation)


class LaunchOrder(Generic[P]):
    """The queue of one track. Pure."""

    __slots__ = ("_line", "_weight")

    def __init__(self) -> None:
        self._line: deque[P] = deque()
        self._weight = 0

    def told(self, operation: P) -> None:
        """It may go, behind those that were told before."""
        self._line.append(operation)

    @property
    def head(self) -> P | None:
        """The next to be launched, where there is room for it."""
        line = self._line
        if not line or (self._weight and self._weight + line[0].weight > MOST_LAUNCHED):
            return None
        return line[0]

    def launched(self, operation: P) -> None:
        """The head is on its way."""
        assert self._line[0] is operation
        self._line.popleft()
        self._weight += operation.weight

    def done(self, operation: P) -> None:
        """One that was launched is over, well or not."""
        self._weight -= operation.weight

    def drop(self, operation: P) -> None:
        """It will not be launched."""
        if operation in self._line:
            self._line.remove(operation)
