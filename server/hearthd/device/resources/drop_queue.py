"""Host buffers whose copies have been given to a stream, gathered until one event stands for all of them.

An event for every small copy costs more than the copy. So buffers are staged, and a batch is closed, with one event
recorded behind it, when it holds enough of them, in number or in bytes; code that closes it earlier (the end of a turn,
a wait for memory) takes the buffers staged so far. A closed batch is no longer in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class DropPolicy:
    """Limits of a batch: buffers or bytes, whichever is reached first (CubeCL's figures)."""

    max_count: int = 64
    max_bytes: int = 64 << 20
    count: int = 0
    bytes: int = 0

    def note(self, size: int) -> None:
        """Counts one more buffer."""
        self.count += 1
        self.bytes += size

    @property
    def due(self) -> bool:
        return self.count >= self.max_count or self.bytes >= self.max_bytes

    def reset(self) -> None:
        self.count = 0
        self.bytes = 0


class DropQueue(Generic[T]):
    """Buffers of one stream that wait for its work."""

    def __init__(self, policy: DropPolicy | None = None) -> None:
        self.policy = policy if policy is not None else DropPolicy()
        self._staged: list[T] = []

    def __len__(self) -> int:
        return len(self._staged)

    def push(self, item: T, size: int) -> bool:
        """Stages a buffer of `size` bytes; whether the batch is due."""
        self._staged.append(item)
        self.policy.note(size)
        return self.policy.due

    def close(self) -> list[T]:
        """The batch, and the start of another; empty where there is none, and then no event is needed."""
        batch, self._staged = self._staged, []
        self.policy.reset()
        return batch
