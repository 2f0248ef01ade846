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
blocks a thread that submits about a thousand to a few tracks until some are done, and this thread must not wait for
peers. Further operations wait here: all ranks launch in the same order, so that the first can always be done."""


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
        """Queues an operation that may be launched, behind earlier ones."""
        self._line.append(operation)

    @property
    def head(self) -> P | None:
        """The next to be launched, where there is room for it."""
        line = self._line
        if not line or (self._weight and self._weight + line[0].weight > MOST_LAUNCHED):
            return None
        return line[0]

    def launched(self, operation: P) -> None:
        """Takes note that the first operation has been launched."""
        assert self._line[0] is operation
        self._line.popleft()
        self._weight += operation.weight

    def done(self, operation: P) -> None:
        """Ends an operation that was launched, with success or not."""
        self._weight -= operation.weight

    def drop(self, operation: P) -> None:
        """Removes an operation that will not be launched."""
        if operation in self._line:
            self._line.remove(operation)
