"""Queue of host buffers whose copies have been submitted to a stream. One event covers a batch of buffers.

An event for every small copy costs more than the copy. Therefore buffers are staged, and a batch is closed, with one
event recorded behind it, when it holds enough buffers or bytes. A caller may close it earlier (at the end of a loop
iteration, or because memory is short); the batch then contains the buffers staged so far. A closed batch is no longer
in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class DropPolicy:
    """Limits of a batch: number of buffers or bytes, whichever is reached first (CubeCL's figures)."""

    max_count: int = 64
    max_bytes: int = 64 << 20
    count: int = 0
    bytes: int = 0

    def count_buffer(self, size: int) -> None:
        """Counts one more buffer of `size` bytes."""
        self.count += 1
        self.bytes += size

    @property
    def is_full(self) -> bool:
        """True once the batch has reached a limit and should be closed."""
        return self.count >= self.max_count or self.bytes >= self.max_bytes

    def reset(self) -> None:
        """Starts counting a new batch."""
        self.count = 0
        self.bytes = 0


class DropQueue(Generic[T]):
    """Buffers of one stream that are kept until its work is done."""

    def __init__(self, policy: DropPolicy | None = None) -> None:
        self.policy = policy if policy is not None else DropPolicy()
        self._staged: list[T] = []

    def __len__(self) -> int:
        return len(self._staged)

    def push(self, item: T, size: int) -> bool:
        """Stages a buffer of `size` bytes. Returns True if the batch should be closed."""
        self._staged.append(item)
        self.policy.count_buffer(size)
        return self.policy.is_full

    def close(self) -> list[T]:
        """Returns the batch and starts a new one. An empty list means that no event is needed."""
        batch, self._staged = self._staged, []
        self.policy.reset()
        return batch
