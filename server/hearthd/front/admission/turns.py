"""Reading of gRPC messages from callers whose headers show no credential, one after the other.

gRPC buffers a whole message before it shows any of it, up to the limit of the longest method, so that the only bound on
the memory of strangers is how many of their messages are on their way at once: one. A message that is as short as it
has to be arrives with its headers, and its turn takes no time. Hosts take turns, so that one that lets others wait
delays its own calls first; while others wait, a turn is short. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class FairLock:
    """A lock that is fair to hosts."""

    def __init__(self, alone: float = 1.0, contended: float = 0.1) -> None:
        """`alone`: seconds of a turn while no other caller waits; `contended`: while others do."""
        self._alone = alone
        self._contended = contended
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._began: float | None = None
        """The time at which the present turn began."""
        self._timeout: asyncio.Timeout | None = None

    async def run(self, host: str, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, begun when it has its turn. Raises `TimeoutError` where that is over before."""
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
        """Gives the turn to the host that has waited longest since its last one."""
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
