"""Batches that were passed on to a device process and not yet acknowledged. A session's windows count them.

They outlive the Execute stream over which they arrived: the device process executes them, whichever stream attaches
next.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hearthd.front.sessions.command_queue import CommandQueue


class InFlightBatches:
    """The unacknowledged batches of one channel, oldest first."""

    def __init__(self, queue: CommandQueue) -> None:
        self.last = 0
        """Number of the last batch that was passed on. The client must send the batches after it."""
        self.acked = 0
        self.bytes = 0
        self.queue = queue
        """The tenant's queue, which counts the batches too."""
        self._sizes: deque[int] = deque()
        self._empty_waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, size: int) -> None:
        """Adds a batch of `size` bytes that was passed on."""
        self.last += 1
        self.bytes += size
        self._sizes.append(size)
        self.queue.count(size)

    def note_lane_batches(self, last: int) -> None:
        """Notes that the batches up to number `last` reached the device process over the lane.

        Batches that did not pass through the front count with a size of 0.
        """
        while self.last < last:
            self.add(0)

    def acknowledge(self, seq: int) -> bool:
        """Removes the batches up to number `seq`, which have been executed.

        Returns False if they were acknowledged before.
        """
        if seq <= self.acked:
            return False
        for _ in range(min(seq - self.acked, len(self._sizes))):
            self._remove_oldest()
        self.acked = seq
        self.last = max(self.last, seq)
        return True

    def drop_non_batch(self) -> None:
        """Removes one entry, for a message that was no batch.

        The message gets no acknowledgement, so its entry would otherwise never be removed.
        """
        if self._sizes:
            self._remove_oldest()
            self.last -= 1

    def clear(self) -> None:
        """Drops all batches, because none of them will be executed any more."""
        while self._sizes:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        size = self._sizes.popleft()
        self.bytes -= size
        self.queue.release(size)
        if not self._sizes and self._empty_waiter is not None and not self._empty_waiter.done():
            self._empty_waiter.set_result(None)

    async def wait_until_empty(self) -> None:
        """Returns when no batch is in flight."""
        while self._sizes:
            if self._empty_waiter is None or self._empty_waiter.done():
                self._empty_waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._empty_waiter)
