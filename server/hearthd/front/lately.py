"""An answer that many ask for: found out once, for all who can do with one that is some moments old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lately(Generic[T]):
    """Belongs to the event loop. `find` finds the answer out."""

    def __init__(self, find: Callable[[], Awaitable[T]], clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._asked = float("-inf")
        self._task: asyncio.Task[T] | None = None

    @property
    def age(self) -> float:
        """Seconds since it was asked for last."""
        return self._clock() - self._asked

    async def get(self, max_age: float) -> T:
        """One that is no older than so many seconds; found out now if there is none. Raises what `find` does."""
        task = self._task
        if task is None or self.age > max_age or (task.done() and (task.cancelled() or task.exception() is not None)):
            self._asked = self._clock()
            task = self._task = asyncio.ensure_future(self._found())
        return await asyncio.shield(task)  # who goes away takes it from nobody

    async def _found(self) -> T:
        return await self._find()

    def close(self) -> None:
        """Nobody waits for it any more."""
        if self._task is not None:
            self._task.cancel()
