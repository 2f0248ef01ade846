"""A fair lock that serializes the reading of gRPC messages from callers whose headers show no credential.

gRPC buffers a whole message, up to the limit of the longest method, before it passes any of it on. The memory for
unauthenticated callers is therefore limited by reading only one of their messages at a time. A message as short as it
has to be arrives with its headers, so that reading it takes no time. Hosts alternate, so that a host that occupies the
lock delays mainly its own calls. While other callers wait, the time limit is short. Belongs to the event loop.
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
        self._began: float | None = None
        """The time at which the present holder got the lock. None: the lock is free."""
        self._timeout: asyncio.Timeout | None = None

    async def run(self, host: str, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` while holding the lock, and returns its result.

        Raises `TimeoutError` if `work` exceeds the time limit.
        """
        await self._wait(host)
        try:
            loop = asyncio.get_running_loop()
            self._began = loop.time()
            async with asyncio.timeout(self._contended if self._waiting else self._alone) as self._timeout:
                return await work()
        finally:
            self._timeout = self._began = None
            self._next()

    async def _wait(self, host: str) -> None:
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        if self._timeout is not None and not self._timeout.expired():
            when, due = self._timeout.when(), self._began + self._contended
            if when is None or when > due:
                self._timeout.reschedule(due)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._began = None
                self._next()
            raise

    def _next(self) -> None:
        """Passes the lock to the host that has waited longest since it last held the lock."""
        while self._waiting:
            host = next(iter(self._waiting))
            waiting = self._waiting.pop(host)
            turn = waiting.popleft()
            if waiting:
                self._waiting[host] = waiting
            if not turn.done():
                self._began = asyncio.get_running_loop().time()
                turn.set_result(None)
                return
