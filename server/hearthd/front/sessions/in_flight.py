"""Batches that a device process was given and has not acknowledged, which a session's windows count.

They outlive the Execute stream that brought them: the device process executes them whichever stream attaches next.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hearthd.front.sessions.command_queue import CommandQueue


class InFlightBatches:
    """The unacknowledged batches of one channel, oldest first."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the last one that was given; those after it have to be sent by the client."""
        self.acked = 0
        self.bytes = 0
        self.queue: CommandQueue | None = None
        """The tenant's, which counts them too; set before the first one."""
        self._sizes: deque[int] = deque()
        self._none_left: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._sizes)

    def give(self, size: int) -> None:
        """Adds a batch of `size` bytes that was passed on."""
        self.last += 1
        self.bytes += size
        self._sizes.append(size)
        if self.queue is not None:
            self.queue.take(size)

    def went_by(self, last: int) -> None:
        """All up to this one have come to the device process, the later ones past the front: of no size here."""
        while self.last < last:
            self.give(0)

    def acknowledge(self, seq: int) -> bool:
        """All up to this one have been executed; whether that is news."""
        if seq <= self.acked:
            return False
        for _ in range(min(seq - self.acked, len(self._sizes))):
            self._drop()
        self.acked = seq
        self.last = max(self.last, seq)
        return True

    def take_back(self) -> None:
        """A message was no batch and gets no acknowledgement: it must not hold a place for ever."""
        if self._sizes:
            self._drop()
            self.last -= 1

    def clear(self) -> None:
        """Drops all: none of them will be executed any more."""
        while self._sizes:
            self._drop()

    def _drop(self) -> None:
        size = self._sizes.popleft()
        self.bytes -= size
        if self.queue is not None:
            self.queue.give(size)
        if not self._sizes and self._none_left is not None and not self._none_left.done():
            self._none_left.set_result(None)

    async def settled(self) -> None:
        """Returns when there is none."""
        while self._sizes:
            if self._none_left is None or self._none_left.done():
                self._none_left = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._none_left)
