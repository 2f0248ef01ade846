"""Queue of host buffers whose copies have been submitted to a stream. One event covers a batch of buffers.

An event for every small copy costs more than the copy. Therefore buffers are staged, and a batch is closed, with one
event recorded after it, when it holds enough buffers or bytes. A caller may close it earlier (at the end of a loop
iteration, or because memory is short); the batch then contains the buffers staged so far. A closed batch is no longer
in the queue.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

MAX_COUNT = 64
MAX_BYTES = 64 << 20
"""Limits of a batch: number of buffers or bytes, whichever is reached first (CubeCL's figures)."""


class DropQueue(Generic[T]):
    """Buffers of one stream that are kept until its work is done."""

    __slots__ = ("_max_bytes", "_max_count", "_staged", "bytes")

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._staged: list[T] = []
        self.bytes = 0
        """Sum of the sizes of the staged buffers."""

    def __len__(self) -> int:
        return len(self._staged)

    def push(self, item: T, size: int) -> bool:
        """Stages a buffer of `size` bytes. Returns True if the batch has reached a limit and should be closed."""
        self._staged.append(item)
        self.bytes += size
        return len(self._staged) >= self._max_count or self.bytes >= self._max_bytes

    def close(self) -> list[T]:
        """Returns the batch and starts a new one. An empty list means that no event is needed."""
        batch, self._staged = self._staged, []
        self.bytes = 0
        return batch
