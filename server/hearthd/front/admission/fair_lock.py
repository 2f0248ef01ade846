"""A fair lock that serializes the reading of gRPC messages from callers whose headers show no credential.

gRPC buffers a whole message, up to the limit of the longest method, before it passes any of it on. The memory for
unauthenticated callers is therefore limited by reading only one of their messages at a time. A message within the limit
for such callers arrives together with its headers, so that reading it takes no time. Hosts alternate, so that a host
that occupies the lock delays mainly its own calls. While other callers wait, the time limit is short. Belongs to the
event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class FairLock:
    """A lock that alternates between hosts."""

    def __init__(self, alone: float = 1.0, contended: float = 0.1) -> None:
        """Creates the lock.

        `alone`: time limit, in seconds, while no other caller waits; `contended`: while others wait.
        """
        self._alone = alone
        self._contended = contended
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._acquired_at: float | None = None
        """The time at which the present holder got the lock. None: the lock is free."""
        self._timeout: asyncio.Timeout | None = None

    async def run(self, host: str, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` while holding the lock, and returns its result.

        Raises `TimeoutError` if `work` exceeds the time limit.
        """
        await self._acquire(host)
        try:
            loop = asyncio.get_running_loop()
            self._acquired_at = loop.time()
            async with asyncio.timeout(self._contended if self._waiting else self._alone) as self._timeout:
                return await work()
        finally:
            self._timeout = self._acquired_at = None
            self._hand_over()

    async def _acquire(self, host: str) -> None:
        if self._acquired_at is None:
            self._acquired_at = asyncio.get_running_loop().time()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(waiter)
        if self._timeout is not None and not self._timeout.expired():
            deadline, contended_deadline = self._timeout.when(), self._acquired_at + self._contended
            if deadline is None or deadline > contended_deadline:
                self._timeout.reschedule(contended_deadline)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._acquired_at = None
                self._hand_over()
            raise

    def _hand_over(self) -> None:
        """Passes the lock to the host that has waited longest since it last held the lock."""
        while self._waiting:
            host = next(iter(self._waiting))
            waiters = self._waiting.pop(host)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[host] = waiters
            if not waiter.done():
                self._acquired_at = asyncio.get_running_loop().time()
                waiter.set_result(None)
                return
