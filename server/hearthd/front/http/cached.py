"""Single-flight cached response: computed once for all requests that accept a response of a certain age.

The pattern is that of Go's `singleflight`, with a limit on the age. Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class CachedResponse(Generic[T]):
    """Caches the result of `compute`. Belongs to the event loop."""

    def __init__(self, compute: Callable[[], Awaitable[T]], clock: Callable[[], float] = time.monotonic) -> None:
        self._compute = compute
        self._clock = clock
        self._started_at = float("-inf")
        self._task: asyncio.Future[T] | None = None

    @property
    def age(self) -> float:
        """Seconds since the last call of `compute`."""
        return self._clock() - self._started_at

    async def get(self, max_age: float) -> T:
        """Returns a result that is at most `max_age` seconds old, and calls `compute` if there is none.

        All callers that wait for one call of `compute` get its error; an error is not cached.
        """
        task = self._task
        if task is None or self.age > max_age or (task.done() and (task.cancelled() or task.exception() is not None)):
            self._started_at = self._clock()
            task = self._task = asyncio.ensure_future(self._compute())
        return await asyncio.shield(task)  # the cancellation of one caller does not affect the others

    def close(self) -> None:
        """Cancels a call of `compute` that is under way."""
        if self._task is not None:
            self._task.cancel()
