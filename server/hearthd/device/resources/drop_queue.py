"""Host buffers whose copies have been given to a stream, gathered until one event stands for all of them.

An event for every small copy costs more than the copy. So buffers are staged, and a batch is closed, with one event
recorded behind it, when it holds enough of them, in number or in bytes; whoever closes it earlier (the end of a turn,
somebody who waits for memory) takes what is there. A batch that has been closed is out of the queue's hands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class DropPolicy:
    """When a batch is due: at so many buffers or bytes, whichever comes first (CubeCL's figures)."""

    max_count: int = 64
    max_bytes: int = 64 << 20
    count: int = 0
    bytes: int = 0

    def note(self, size: int) -> None:
        """One buffer more."""
        self.count += 1
        self.bytes += size

    @property
    def due(self) -> bool:
        return self.count >= self.max_count or self.bytes >= self.max_bytes

    def reset(self) -> None:
        self.count = 0
        self.bytes = 0


class DropQueue(Generic[T]):
    """What one stream is still to be asked about."""

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
