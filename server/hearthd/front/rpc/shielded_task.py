"""Work that is done to its end once it has begun, also when its caller goes: memory and files are left to nobody.

Whoever lost its connection before it was answered asks again: it waits for the work that it began the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class ShieldedTask:
    """Of one service."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, work: Callable[[], Awaitable[T]], same: Hashable = None) -> T:
        """What `work` returns; who is cancelled here leaves it running. `same`: what is equal to that of work under way
        is that work, asked for again; None: this is none other."""

        async def run() -> T:
            return await work()

        key = object() if same is None else same
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(run())
            task.add_done_callback(lambda task: self._done(key, task))
        return await asyncio.shield(task)

    def _done(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # looked at: the caller may have gone
