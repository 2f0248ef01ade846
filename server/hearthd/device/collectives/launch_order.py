"""Launch order of the collectives of one track: the order in which the front releases them.

A track runs its operations one after the other. If a rank launched an operation before another that its peers have
launched first, each side would wait for the other. So all devices launch in the order in which the front releases the
operations, regardless of their communicators.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

MAX_LAUNCHED = 256
"""Limit of operations, each part of a batch counted, that are launched on a track and not known to be done. The driver
blocks a thread that has submitted about a thousand to a few tracks until some are done, and the device-handle thread
must not wait for peers. Further operations are queued here. All ranks launch in the same order, so the first operation
can always complete."""


class WeightedOperation(Protocol):
    """An operation, or a batch of them; `weight` is the number of operations."""

    @property
    def weight(self) -> int:
        """Number of operations of the batch, at least 1."""
        ...


P = TypeVar("P", bound=WeightedOperation)


class LaunchOrder(Generic[P]):
    """The queue of one track. Pure: no I/O, no clock."""

    __slots__ = ("_queue", "_weight")

    def __init__(self) -> None:
        self._queue: deque[P] = deque()
        self._weight = 0

    def enqueue(self, operation: P) -> None:
        """Queues an operation that the front has released, behind earlier ones."""
        self._queue.append(operation)

    @property
    def head(self) -> P | None:
        """The next operation to be launched; None if the queue is empty or the limit leaves no room for it."""
        queue = self._queue
        if not queue or (self._weight and self._weight + queue[0].weight > MAX_LAUNCHED):
            return None
        return queue[0]

    def launched(self, operation: P) -> None:
        """Records that the first operation of the queue has been launched."""
        assert self._queue[0] is operation
        self._queue.popleft()
        self._weight += operation.weight

    def done(self, operation: P) -> None:
        """Records that a launched operation has ended, successfully or not."""
        self._weight -= operation.weight

    def drop(self, operation: P) -> None:
        """Removes an operation that will not be launched."""
        if operation in self._queue:
            self._queue.remove(operation)
